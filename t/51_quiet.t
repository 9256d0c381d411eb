# The monitor leaves no traces: two hundred questions and ten restarts are no
# aborted connection to the database and no line in its log; the password is in
# no argument, environment, log, dump of the configuration or status, nor in
# the scoreboard.
use strict;
use warnings;
use FindBin;
use lib "$FindBin::Bin/lib";
use Test::More;
use Time::HiRes qw(sleep time);
use DBGuard::Process;
use DBGuard::Stack qw(wait_until slurp spew);

my $stack = DBGuard::Stack->new(
    db => { max_connections => 24, options => ['--log-warnings=9'] },
    apache => { workers => 6, start_servers => 2, php => 1,
        modules => ['info'], docroot_config => 'DBGuard On',
        log_level => 'warn dbguard:trace8' });
my ($apache, $db) = ($stack->apache, $stack->db);
my $dir = $stack->dir;
my $program = $ENV{DBGUARD_MONITOR}
    // DBGuard::Stack::builddir() . '/dbguard-monitor';
my $secret = DBGuard::MariaDB::random_word();
spew("$dir/password", "$secret\n", 0600);

sub monitors
{
    return grep { slurp("/proc/$_/cmdline") =~ m{dbguard-monitor\0} }
        DBGuard::Process::children_of($apache->parent);
}

# Everything that ps can show. Where the secret was seen.
my (%seen, $looks, %programs);

sub look
{
    for my $file (glob '/proc/[0-9]*/cmdline /proc/[0-9]*/environ') {
        my $text = slurp($file);
        $programs{$1}++
            if $text =~ m{^(?:\S*/)?(dbguard-monitor|apache2|httpd)};
        $seen{$file} = $text if $text =~ /\Q$secret/;
    }
    $looks++;
}

$db->start;
$db->sql("CREATE USER dbguard\@127.0.0.1 IDENTIFIED BY '$secret';"
    . 'GRANT PROCESS ON *.* TO dbguard@127.0.0.1;');
spew("$dir/question", "user dbguard\nhost 127.0.0.1\nport @{[$db->port]}\n"
    . "password $secret\n\n", 0600);
$apache->set(config => <<"END");
DBGuardEngine On
DBGuardDatabase mariadb://dbguard\@127.0.0.1:@{[$db->port]}
DBGuardPasswordFile $dir/password
DBGuardSnapshot every=1s file=$dir/snapshots
<Location /server-info>
SetHandler server-info
</Location>
END
my $before = $db->status('Aborted_connects');
$apache->start;
my $begin = time;

sub has_answered
{
    my ($not) = @_;
    wait_until(sub {
        look();
        my @pids = monitors();
        @pids == 1 && $pids[0] != $not
            && $db->sql('SELECT COUNT(*) FROM information_schema.PROCESSLIST'
                . " WHERE USER = 'dbguard'") == 1 ? $pids[0] : '';
    }, 15, 'a monitor that asks');
}

subtest 'ten restarts' => sub {
    my $pid = has_answered(0);
    for my $how (('graceful') x 7, 'hard', 'TERM', 'TERM') {
        $how eq 'TERM' ? kill(TERM => $pid) : $apache->restart($how);
        $pid = has_answered($pid);
    }
    is($apache->status_auto->{DBGuardDatabaseState}, 1, 'all is well');
};

subtest 'two hundred questions' => sub {
    my $good = 0;
    for (1 .. 50) {
        # Four at once.
        my @pids = map {
            my $child = fork // die "fork: $!";
            if (!$child) {
                open STDIN, '<', "$dir/question";
                open STDOUT, '>', '/dev/null';
                exec $program, '--probe' or POSIX::_exit(127);
            }
            $child;
        } 1 .. 4;
        for (@pids) {
            waitpid $_, 0;
            $good++ if $? == 0;
        }
        look() if $_ % 10 == 0;
    }
    is($good, 200, 'are answered');
};

# What httpd's own monitor asked has to be many as well.
wait_until(sub { time > $begin + 15 }, 20, 'some polls');

subtest 'what the database has noticed' => sub {
    is($db->status('Aborted_connects'), $before, 'no attempt was aborted');
    my @lines = split /\n/, $db->error_log;
    is_deeply([grep { /without authentication/ } @lines], [],
        'none without authentication');
    is_deeply([grep { /Access denied|unauthenticated/ } @lines], [],
        'nor one that was denied');
    is($db->sql('SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE'
        . " USER = 'dbguard'"), 1, 'one connection is there');
    my $changes = () = $apache->error_log =~ /DBGUARD003[01]/g;
    is($changes, 1, "and httpd's log has one line about it");
    is_deeply([$apache->error_log =~ /.*long lost child.*/g], [],
        'httpd knew each process that ended');
};

subtest 'where the password is not' => sub {
    cmp_ok($looks, '>=', 10, 'looked often enough');
    cmp_ok($programs{'dbguard-monitor'} // 0, '>=', 5,
        'with monitors to be seen');
    is_deeply([sort keys %seen], [], 'no argument and no environment');

    my $info = $apache->get('/server-info?config')->{body};
    like($info, qr/DBGuardPasswordFile/, 'mod_info shows the configuration');
    unlike($info, qr/\Q$secret/, 'without it');
    unlike($apache->get('/server-info')->{body}, qr/\Q$secret/,
        'nor elsewhere in it');
    for my $path ('/server-status', '/server-status?auto') {
        unlike($apache->get($path)->{body}, qr/\Q$secret/, $path);
    }
    unlike(($apache->ctl('status'))[1], qr/\Q$secret/, 'dbguardctl status');
    unlike(($apache->configtest)[1], qr/\Q$secret/, 'a configtest');
    # Whatever either server has written, and the scoreboard.
    my @files = grep { -f } glob "$dir/httpd/log/* $dir/httpd/run/*"
        . " $dir/db/error.log $dir/snapshots";
    cmp_ok(@files, '>=', 6, 'files to look into');
    is_deeply([grep { slurp($_) =~ /\Q$secret/ } @files], [],
        'no log, no scoreboard');
};

done_testing;
