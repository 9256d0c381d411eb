# dbguard-monitor's life: who it runs as and what it has open; killed, stopped,
# ended in the middle of a poll, orphaned, missing. httpd serves all the while,
# and the budget stays what it was.
use strict;
use warnings;
use FindBin;
use lib "$FindBin::Bin/lib";
use Test::More;
use Time::HiRes qw(sleep time);
use DBGuard::Process;
use DBGuard::Stack qw(wait_until slurp spew);

# Hands on what a client of the database says, and the answer to a question
# after a while. Says "question" for each.
my $slow = <<'END';
use strict;
use IO::Select;
use IO::Socket::INET;
use Time::HiRes qw(sleep time);
my ($from, $to, $while) = @ARGV;
$| = 1;
$SIG{CHLD} = 'IGNORE';
my $listen = IO::Socket::INET->new(LocalAddr => '127.0.0.1',
    LocalPort => $from, Listen => 5, ReuseAddr => 1) or die $!;
while (my $client = $listen->accept) {
    next if fork;
    my $server = IO::Socket::INET->new(PeerAddr => '127.0.0.1',
        PeerPort => $to) or exit;
    my $select = IO::Select->new($client, $server);
    my $hold = 0;
    while (my @ready = $select->can_read) {
        for my $one (@ready) {
            sysread $one, my $data, 65536 or exit;
            if ($one == $client) {
                if (length $data > 5 && substr($data, 4, 1) eq "\x03") {
                    $hold = time + $while;
                    print "question\n";
                }
                syswrite $server, $data;
                next;
            }
            sleep $hold - time if $hold > time;
            syswrite $client, $data;
        }
    }
}
END

my $stack = DBGuard::Stack->new(
    db => { max_connections => 24 },
    apache => { workers => 8, start_servers => 2, php => 1,
        docroot_config => 'DBGuard On' });
my ($apache, $db) = ($stack->apache, $stack->db);
my $dir = $stack->dir;
spew("$dir/password", "sekrit\n", 0600);

sub config
{
    my ($port, $more) = @_;
    return "DBGuardEngine On\n"
        . "DBGuardDatabase mariadb://dbguard\@127.0.0.1:$port\n"
        . "DBGuardPasswordFile $dir/password\n" . ($more // '');
}

# The processes below httpd's parent that are, or are about to be, a monitor.
sub monitors
{
    my ($apache) = @_;
    return grep { slurp("/proc/$_/cmdline") =~ m{dbguard-monitor\0} }
        DBGuard::Process::children_of($apache->parent);
}

sub monitor
{
    my ($apache, $not) = @_;
    return wait_until(sub {
        my @all = monitors($apache);
        @all == 1 && $all[0] != ($not // 0) ? $all[0] : '';
    }, 10, 'a monitor');
}

sub auto { $_[0]->status_auto }

sub gone
{
    my ($pid, $within) = @_;
    return eval { wait_until(sub { !DBGuard::Process::stat_of($pid)
        || (DBGuard::Process::stat_of($pid))[0] eq 'Z' }, $within, '') };
}

sub lines
{
    my ($apache, $id) = @_;
    my $lines = () = $apache->error_log =~ /$id:/g;
    return $lines;
}

$db->start;
$db->sql("CREATE USER dbguard\@127.0.0.1 IDENTIFIED BY 'sekrit';"
    . 'GRANT PROCESS ON *.* TO dbguard@127.0.0.1;');
$apache->set(config => config($db->port));
$apache->start;
wait_until(sub { auto($apache)->{DBGuardBudget} == 21 }, 15, 'budget 21');

# A second server, whose monitor is not installed: a while has to pass.
my $missing = DBGuard::Stack->new(apache => { workers => 4, start_servers => 2,
    docroot_config => "DBGuard On", config => config($db->port) })->apache;
my $missing_since = time;
{
    local $ENV{DBGUARD_MONITOR} = '/nonexistent/dbguard-monitor';
    $missing->start;
}

subtest 'what it has' => sub {
    my $pid = monitor($apache);
    my $status = slurp("/proc/$pid/status");
    my $uid = $> == 0 ? getpwnam('www-data') : $>;
    like($status, qr/^Uid:\s+$uid\s+$uid\s+$uid\s/m, "it is httpd's User");
    like($status, qr/^Gid:\s+(?!0\s)/m, 'and Group') if $> == 0;
    my %listening = map { (split)[3] eq '0A' ? ((split)[9] => 1) : () }
        map { split /\n/, slurp($_) } glob '/proc/net/tcp /proc/net/tcp6';
    my @open = map { readlink($_) // () } glob "/proc/$pid/fd/*";
    is((grep { /socket:\[(\d+)\]/ && $listening{$1} } @open), 0,
        'no port of httpd is held open by it');
    is((grep { /socket:/ } @open), 1, 'one connection');
    is((grep { m{^/} && !m{^/dev/null$|/log/|/run/dbguard\.} } @open), 0,
        'no file but the scoreboard, its state and the log') or diag "@open";
};

subtest 'kill -9' => sub {
    my $pid = monitor($apache);
    my $other = 0;
    my $begin = time;
    kill KILL => $pid;
    while (time < $begin + 10) {
        $other++ if auto($apache)->{DBGuardBudget} != 21;
        last if grep { $_ != $pid } monitors($apache);
        sleep 0.02;
    }
    monitor($apache, $pid);
    cmp_ok(time - $begin, '<', 5, sprintf 'another one after %.1f s',
        time - $begin);
    is($other, 0, 'the budget has not changed meanwhile');
    is($apache->get('/p.php')->{status}, 200, 'requests are served');
    like($apache->error_log, qr/DBGUARD0038: .*ended .*\b9\)/,
        'the log says so');
    is(lines($apache, 'DBGUARD0038'), 1, 'once');
};

subtest 'stopped' => sub {
    my $pid = monitor($apache);
    is(auto($apache)->{DBGuardDatabaseStale}, 0, 'the news are fresh');
    kill STOP => $pid;
    $db->sql('SET GLOBAL max_connections = 12');
    my ($begin, $other) = (time, 0);
    my $ok = eval { wait_until(sub {
        my $s = auto($apache);
        $other++ if $s->{DBGuardBudget} != 21;
        sleep 0.1;
        $s->{DBGuardDatabaseStale};
    }, 20, '') };
    ok($ok, sprintf 'the news are old after %.1f s', time - $begin);
    is($other, 0, 'the budget is frozen');
    like(($apache->ctl('status'))[1], qr/OLD NEWS/, 'dbguardctl says so');
    like($apache->get('/server-status')->{body}, qr/old news/,
        'so does the status page');
    is($apache->get('/p.php')->{status}, 200, 'requests are served');
    my $said = () = $apache->error_log =~ /DBGUARD0030/g;
    kill CONT => $pid;
    wait_until(sub { auto($apache)->{DBGuardBudget} <= 9 }, 5, 'it to go on');
    is(auto($apache)->{DBGuardDatabaseStale}, 0, 'it goes on');
    my $says = () = $apache->error_log =~ /DBGUARD0030/g;
    is($says, $said, 'that it has slept is not the database\'s trouble');
    $db->sql('SET GLOBAL max_connections = 24');
};

subtest 'a monitor that is not there' => sub {
    sleep 0.2 while time < $missing_since + 7;
    is($missing->get('/static.txt')->{status}, 200, 'httpd serves');
    is(auto($missing)->{DBGuardBudget}, 7, 'with the safe budget');
    like(($missing->ctl('status'))[1],
        qr/^database nobody has asked it yet; .* dbguard-monitor$/m,
        'the operator sees that nobody asks');
    like($missing->get('/server-status')->{body}, qr/nobody has asked it yet/,
        '... in server-status, too');
    my ($line) = $missing->error_log =~ /(DBGUARD0038: .*)/;
    like($line, qr{/nonexistent/dbguard-monitor.* 127\b},
        'the log names the program, and why it ended');
    # At once, and after 1, 2 and 4 seconds; httpd looks once a second.
    my $lines = lines($missing, 'DBGUARD0038');
    cmp_ok($lines, '>=', 2, 'it is tried again');
    cmp_ok($lines, '<=', 5, 'less and less often') or diag "$lines times in "
        . int(time - $missing_since) . ' s';
    my $begin = time;
    is($missing->stop, 0, 'httpd stops in peace');
    cmp_ok(time - $begin, '<', 5, 'at once');
};

subtest 'ended in the middle of a poll' => sub {
    my $port = DBGuard::Stack::free_port();
    spew("$dir/slow.pl", $slow);
    my $proxy = DBGuard::Process->spawn(output => "$dir/slow.log",
        command => [$^X, "$dir/slow.pl", $port, $db->port, 0.4]);
    my $questions = sub { my $n = () = slurp("$dir/slow.log") =~ /q/g; $n };
    my $in_the_middle = sub {
        my $n = $questions->();
        wait_until(sub { $questions->() > $n }, 10, 'a question');
    };

    $apache->set(config => config($port));
    $apache->restart('graceful');
    wait_until(sub { auto($apache)->{DBGuardBudget} == 21
        && $questions->() > 2 }, 25, 'a slow database of 21');
    my $before = lines($apache, 'DBGUARD003[01]');
    my $aborted = $db->status('Aborted_clients');
    my %seen;
    for my $how (qw(graceful graceful hard TERM)) {
        my $pid = monitor($apache);
        $in_the_middle->();
        $how eq 'TERM' ? kill(TERM => $pid) : $apache->restart($how);
        my $end = time + 1.5;
        while (time < $end) {
            my $s = auto($apache);
            $seen{"state $s->{DBGuardDatabaseState}, budget "
                . $s->{DBGuardBudget}}++;
            sleep 0.05;
        }
        ok(gone($pid, 3), "$how: the old one is gone");
    }
    # The old one's connection, and this test's, may count as others'.
    is((grep { !/^state 1, budget (21|20|19|18)$/ } sort keys %seen), 0,
        'nobody took that for an outage') or diag explain \%seen;
    is(lines($apache, 'DBGUARD003[01]'), $before, 'nothing in the log');
    is($db->status('Aborted_clients'), $aborted,
        'the database has seen none break off');
    $proxy->stop('TERM', 5);
    $apache->set(config => config($db->port));
    $apache->restart('graceful');
};

subtest "httpd's parent is killed" => sub {
    my $pid = monitor($apache);
    wait_until(sub { auto($apache)->{DBGuardDatabaseState} == 1 }, 10, 'ok');
    $apache->signal('KILL');
    ok(gone($pid, 5), 'the monitor ends too');
    $apache->kill;

    # One that has yet to begin, since others before it have died.
    $apache->start;
    $pid = 0;
    for (1 .. 3) {
        $pid = monitor($apache, $pid);
        kill KILL => $pid;
    }
    $pid = monitor($apache, $pid);
    like(slurp("/proc/$pid/cmdline"), qr/--delay=[1-4]s/, 'one that waits');
    $apache->signal('KILL');
    ok(gone($pid, 8), 'ends too');
    kill KILL => $pid;
    $apache->kill;
};

subtest 'httpd stops' => sub {
    $apache->start;
    my $pid = monitor($apache);
    wait_until(sub { auto($apache)->{DBGuardDatabaseState} == 1 }, 10, 'ok');
    is($apache->stop, 0, 'in peace');
    ok(gone($pid, 3), 'and the monitor with it');
};

done_testing;
