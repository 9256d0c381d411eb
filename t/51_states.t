# The states of the database as requests and people see them: a server that
# hangs under load, is killed, or is full. Files and the status page are
# answered all the while, guarded requests at once, the waiting too; the budget
# rises slowly afterwards; the log has one line for a change and none for a
# poll.
use strict;
use warnings;
use FindBin;
use lib "$FindBin::Bin/lib";
use Test::More;
use Time::HiRes qw(sleep time);
use DBGuard::Stack qw(wait_until slurp spew);

# Takes every connection that is to be had, until its gate is opened.
my $others = <<'END';
<?php
mysqli_report(MYSQLI_REPORT_OFF);
$all = [];
$file = dirname(__DIR__) . '/sessions/' . basename($_GET['gate']);
for ($i = 0; $i < 6000 && !file_exists("$file.open"); $i++) {
    do {
        $c = @new mysqli('localhost', getenv('DB_USER'), getenv('DB_PASSWORD'),
            null, 0, getenv('DB_SOCKET'));
    } while (!$c->connect_errno && $all[] = $c);
    file_put_contents("$file.got", count($all));
    usleep(5000);
    clearstatcache();
}
END

my $extra_port = DBGuard::Stack::free_port();
my $stack = DBGuard::Stack->new(
    db => { max_connections => 12, options => [
        "--extra-port=$extra_port", '--extra-max-connections=3'] },
    apache => {
        workers => 30, php => 1,
        docroot_config => "DBGuard On\n<Files others.php>\nDBGuard Off\n"
            . '</Files>',
        files => { 'others.php' => $others },
    });
my ($apache, $db) = ($stack->apache, $stack->db);
my %states = (ok => 1, full => 2, stalled => 3, down => 4);
spew("$stack->{dir}/password", "sekrit\n", 0600);

sub config
{
    my ($more, $options) = @_;
    $options //= '';
    return "DBGuardEngine On\nDBGuardQueue patience=60s\n"
        . "DBGuardDatabase mariadb://dbguard\@127.0.0.1:$db->{port} $options\n"
        . "DBGuardPasswordFile $stack->{dir}/password\n" . ($more // '');
}

sub reload
{
    $apache->set(config => config(@_));
    $apache->restart('graceful');
}

# The time that the issue allows; more of it where many others use the machine.
sub seconds
{
    my ($load) = split ' ', slurp('/proc/loadavg');
    return $_[0] * ($load > 8 ? 3 : 1) + 0.2;
}

my $slowest = 0;

# Every look at the status is also one at a file.
sub auto
{
    for my $path ('/static.txt', '/server-status?auto') {
        my $begin = time;
        my $answer = $apache->get($path);
        $slowest = time - $begin if time - $begin > $slowest;
        die "$path: $answer->{status}" if $answer->{status} != 200;
        return { map { /^([^:]+): (.*)$/ ? ($1 => $2) : () }
            split /\n/, $answer->{body} } if $path =~ /auto/;
    }
}

# Waits for the state; returns how long it took.
sub becomes
{
    my ($state, $within) = @_;
    my $begin = time;
    my $ok = eval { wait_until(
        sub { auto()->{DBGuardDatabaseState} == $states{$state} }, $within,
        '') };
    my $took = time - $begin;
    ok($ok, sprintf '%s after %.1f s', $state, $took)
        or diag 'it is ' . auto()->{DBGuardDatabaseState};
    return $took;
}

# The lines about changes since the last call: the states, in order.
my $seen = 0;

sub changes
{
    my $log = substr $apache->error_log, $seen;
    $seen += length $log;
    return join ' ', $log =~ /DBGUARD003[01]: the database is (\w+)/g;
}

# So many clients that ask again and again. pump() goes round once;
# what came is counted, and the longest time that an answer took is noted.
my (@clients, %count, $longest, $path);

sub pump
{
    for (@clients) {
        $_ //= $apache->get_async($path);
        next if !$_->ready;
        my $answer = $_->response;
        $count{ $answer->{status} }++;
        $longest = $answer->{seconds} if $answer->{seconds} > $longest;
        # A refused client does not hammer.
        $_ = undef if $answer->{status} == 200 || rand() < 0.05;
    }
}

sub load
{
    (my $n, $path) = @_;
    @clients = map { $apache->get_async($path) } 1 .. $n;
    (%count, $longest) = ();
    $longest = 0;
}

sub pump_until
{
    my ($code, $within, $what) = @_;
    return wait_until(sub { pump(); $code->() }, $within, $what);
}

sub drain
{
    my @left = grep { $_ } @clients;
    @clients = ();
    return map { $_->response(60)->{status} } @left;
}

$db->start;
$db->sql("CREATE USER dbguard\@127.0.0.1 IDENTIFIED BY 'sekrit';"
    . 'GRANT PROCESS ON *.* TO dbguard@127.0.0.1;');
$apache->set(config => config());
$apache->start;

subtest 'a server that hangs under load' => sub {
    becomes('ok', seconds(2));
    is(changes(), 'ok', 'a line for the beginning');
    load(14, '/p.php?s=0.3');
    pump_until(sub { ($count{200} // 0) >= 20
        && auto()->{DBGuardWaiting} > 0 }, 30, 'load');
    is_deeply([keys %count], [200], 'all are served')
        or diag explain \%count;

    my $begin = time;
    $db->pause;
    my $s = auto();
    cmp_ok($s->{DBGuardHeld}, '>', 0, 'some are inside');
    pump_until(sub { pump(); auto()->{DBGuardDatabaseState} == 3 }, seconds(2),
        'stalled');
    pass(sprintf 'stalled after %.1f s', time - $begin);
    pump_until(sub { auto()->{DBGuardWaiting} == 0 }, 2, 'nobody to wait');
    pass('the waiting are sent away');
    my $answer = $apache->get('/p.php');
    is($answer->{status}, 503, 'a new one is refused');
    cmp_ok($answer->{seconds}, '<', 1, 'at once');
    ok($answer->{headers}{'retry-after'}, 'and told when to come back');
    cmp_ok(auto()->{DBGuardRefusedDatabaseTotal}, '>', 0, 'they are counted');
    is((grep { $_->{verdict} eq 'refused(database)' }
        $apache->access_entries) > 0, 1, 'and logged with the reason');

    my (undef, $text) = $apache->ctl('status');
    like($text, qr/^database stalled for \d+ s: it accepts connections/m,
        'dbguardctl names the state');
    like($text, qr/error 2013: .*\n\s+remedy: \w/, 'the error and a remedy');
    like($apache->get('/server-status')->{body},
        qr/Database: <strong>stalled<\/strong>.* Error 2013.* Remedy: /s,
        'so does the status page');
    $apache->wait_log(
        qr/dbguard:warn.*0030: the database is stalled.*error 2013.*remedy: /);
    pass('and the log');
    my $held = auto()->{DBGuardHeld};
    sleep 0.1, pump() while time < $begin + 5;
    is(auto()->{DBGuardHeld}, $held, 'nobody is let in');
    is(changes(), 'stalled', 'one line');
    cmp_ok($slowest, '<', seconds(1), sprintf 'files and status: %.2f s',
        $slowest);

    $begin = time;
    $db->resume;
    pump_until(sub { auto()->{DBGuardDatabaseState} == 1 }, seconds(2), 'ok');
    pass(sprintf 'ok after %.1f s', time - $begin);
    my ($ok, $risen, $over, $last, $falls) = (time, 0, 0, 0, 0);
    my $inside = 0;
    %count = ();
    while (time < $ok + 30 && !$risen) {
        pump();
        $s = auto();
        # Who was inside all the time is above the budget at first.
        $inside ||= $s->{DBGuardHeld} <= $s->{DBGuardBudget};
        $over++ if $inside && $s->{DBGuardHeld} > $s->{DBGuardBudget};
        $falls++ if $s->{DBGuardBudget} < $last;
        $last = $s->{DBGuardBudget};
        $risen = $last >= 8;
        sleep 0.02;
    }
    note sprintf 'budget %d after %.1f s', $last, time - $ok;
    cmp_ok(time - $ok, '>', 6, 'the budget rises slowly');
    cmp_ok(time - $ok, '<', 10 + seconds(2), 'over ten seconds');
    is($over, 0, 'nobody above it');
    is($falls, 0, 'and it does not fall meanwhile');
    cmp_ok($count{200} // 0, '>', 0, 'requests are served meanwhile');
    is($count{500} // 0, 0, 'none meets an error of the database');
    drain();
    is(changes(), 'ok', 'one line');
};

subtest 'kill -9 of mariadbd' => sub {
    $db->kill;
    becomes('down', seconds(2));
    my $answer = $apache->get('/p.php');
    is($answer->{status}, 503, 'refused');
    cmp_ok($answer->{seconds}, '<', 1, 'at once');
    my (undef, $text) = $apache->ctl('status');
    like($text, qr/^database down .*\n\s+error 200\d: /m, 'named');

    reload('DBGuardOutage admit');
    wait_until(sub { $apache->get('/p.php')->{status} == 500 }, 5,
        'DBGuardOutage admit to let them in');
    is($apache->get('/p.php')->{body}, "database error 2002\n",
        'DBGuardOutage admit: they see for themselves');
    is(auto()->{DBGuardDatabaseState}, 4, 'the state is told all the same');
    reload('DBGuardReserve 0');
    wait_until(sub { $apache->get('/p.php')->{status} == 503 }, 5, 'refuse');
    is(changes(), 'down', 'one line, whatever is reloaded');

    $db->start;
    becomes('ok', seconds(2));
    is($apache->get('/p.php')->{status}, 200, 'served again');
    is(changes(), 'ok', 'one line');
};

subtest 'a full server' => sub {
    # No reload here: the others could take the place of a monitor that is
    # being replaced.
    my $one = $apache->get_async('/others.php?gate=all');
    my $got = $apache->dir . '/sessions/all.got';
    wait_until(sub { (slurp($got) || 0) >= 11 }, 20, 'the others to connect');
    pass('others have every connection');
    becomes('full', seconds(2));
    is(auto()->{DBGuardBudget}, 1, 'the budget is cut');
    # One that is turned away counts as connected for a moment.
    wait_until(sub {
        my $s = auto();
        $s->{DBGuardDatabaseConnected} >= $s->{DBGuardDatabaseMaxConnections};
    }, 10, 'the monitor and the others to have every connection');
    unlike(($apache->ctl('status'))[1], qr/error 1040/,
        'the monitor has kept its connection');
    $apache->wait_log(qr/DBGUARD0030: the database is full.*remedy: /);
    is(changes(), 'full', 'one line');

    # Now it has to get in anew.
    # The others look for the old one's place every few milliseconds; now and
    # then the new one is faster.
    for (1 .. 8) {
        reload('DBGuardReserve 0');
        last if eval {
            wait_until(sub { ($apache->ctl('status'))[1] =~ /error 1040/ }, 3,
                'the monitor to be turned away');
        };
    }
    my (undef, $text) = $apache->ctl('status');
    like($text, qr/^database full .*\n +error 1040: .*\n +remedy: see/m,
        'it says so, and what to do');
    is(auto()->{DBGuardBudget}, 1, 'the budget stays low');
    is(changes(), '', 'full is full: no line');

    # The extra port is there for that.
    reload('DBGuardReserve 0', "extra-port=$extra_port");
    wait_until(sub { ($apache->ctl('status'))[1] !~ /error 1040/ }, 10,
        'the extra port to let it in');
    cmp_ok(auto()->{DBGuardDatabaseConnected}, '>=', 12,
        'by the extra port it gets in');
    is(auto()->{DBGuardDatabaseState}, 2, 'and sees that it is full');

    spew($apache->dir . '/sessions/all.open', '');
    $one->response;
    becomes('ok', seconds(2));
    my $low = auto()->{DBGuardBudget};
    wait_until(sub { auto()->{DBGuardBudget} > $low }, 15, 'it to grow');
    pass('the budget grows again');
    is(changes(), 'ok', 'one line');
};

is(changes(), '', 'nothing else was said');
my $lines = () = $apache->error_log =~ /DBGUARD003\d/g;
is($lines, 7, 'one line for each change, in ' . int(time - $^T) . ' polls');
unlike($apache->error_log, qr/sekrit/, 'no password in the log');

done_testing;
