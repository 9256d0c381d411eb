# dbguardctl doctor: what it says of a database that is well, full, stopped,
# hanging or closed to it; how long it takes; and what it never shows.
use strict;
use warnings;
use FindBin;
use lib "$FindBin::Bin/lib";
use IPC::Open2 qw(open2);
use Test::More;
use Time::HiRes qw(sleep time);
use DBGuard::Stack qw(wait_until slurp spew builddir);

$ENV{DBGUARD_MONITOR} //= builddir() . '/dbguard-monitor';

my $secret = 'Xq7secret' . DBGuard::MariaDB::random_word();
my $stack = DBGuard::Stack->start(
    db => { max_connections => 12 },
    apache => { workers => 8, php => 1, config => 'DBGuardEngine On',
        docroot_config => 'DBGuard On' });
my ($db, $apache) = ($stack->db, $stack->apache);
my $everything = '';

$db->sql(join ';', map {
    "CREATE USER $_\@127.0.0.1 IDENTIFIED BY '$secret'"
} qw(watcher blind admin member limited));
$db->sql(<<'END');
GRANT PROCESS ON *.* TO watcher@127.0.0.1;
GRANT PROCESS, CONNECTION ADMIN ON *.* TO admin@127.0.0.1;
GRANT PROCESS ON *.* TO limited@127.0.0.1 WITH MAX_USER_CONNECTIONS 9;
CREATE ROLE viewer;
GRANT PROCESS ON *.* TO viewer;
GRANT viewer TO member@127.0.0.1;
SET DEFAULT ROLE viewer FOR member@127.0.0.1;
END
spew($apache->dir . '/password', "$secret\n", 0600);
spew($apache->dir . '/wrong', "wrong\n", 0600);
spew($stack->dir . '/app.cnf', "[client]\nuser=app\n"
    . "password=@{[$db->password]}\nsocket=@{[$db->socket]}\n", 0600);

# Exit code and output, the latter with its line breaks undone.
sub doctor
{
    my ($code, $text) = $apache->ctl('doctor');
    $everything .= $text;
    unlike($text, qr/^(?!dbguardctl:|httpd ).{80}/m,
        'no line is longer than 79 characters');
    return ($code, $text =~ s/\n {17}/ /gr);
}

# The database is asked by this account; returns when the monitor knows it.
sub ask_as
{
    my ($user, %arg) = @_;
    my $file = $arg{file} // 'password';
    my $at = '127.0.0.1:' . $db->port;
    my $polls = $apache->status_auto->{DBGuardDatabaseState} // 0;
    my $more = $arg{config} // '';

    $apache->set(config => "DBGuardEngine On\n"
        . "DBGuardDatabase mariadb://$user\@$at\n"
        . "DBGuardPasswordFile $file\n$more");
    $apache->restart('graceful');
    return if $arg{nowait};
    # The one before has said goodbye when there is one connection of this one.
    wait_until(sub {
        $db->sql("SELECT COUNT(*) FROM information_schema.processlist"
            . " WHERE user = '$user' AND command = 'Sleep'") == 1
            && $apache->status_auto->{DBGuardDatabaseState} == 1;
    }, 15, "the monitor as $user");
}

# n connections of the application, or of root; they are in when this returns.
sub clients
{
    my ($n, $user) = @_;
    my $file = $user ? "$db->{dir}/client.cnf" : $stack->dir . '/app.cnf';

    return [map { client($file) } 1 .. $n];
}

sub client
{
    my ($file) = @_;

    # The last place may be in use for a moment by what the test itself asks.
    for (1 .. 20) {
        my $pid = open2(my $out, my $in, DBGuard::MariaDB::program('mariadb'),
            "--defaults-file=$file", qw(--batch --unbuffered
            --skip-column-names));
        print $in "SELECT 'in';\n";
        $in->flush;
        return [$pid, $in, $out] if (<$out> // '') eq "in\n";
        waitpid $pid, 0;
        sleep 0.1;
    }
    die 'no connection';
}

sub leave
{
    my ($clients) = @_;
    for (@$clients) {
        close $_->[1];
        waitpid $_->[0], 0;
    }
    wait_until(sub { eval { connected() } <= 2 }, 10, 'clients to go');
}

sub connected { $db->status('Threads_connected') }

subtest 'without a database in the configuration' => sub {
    my ($code, $text) = doctor();
    is($code, 4, 'exit code');
    like($text, qr/not asked: there is no DBGuardDatabase/, 'says so');
    like($text, qr/7 tokens, 0 out now/, 'the budget all the same');
};

subtest 'a database that is well' => sub {
    ask_as('watcher');
    $apache->get('/p.php?s=0.2') for 1 .. 3;
    sleep 1.1;
    my $start = time;
    my ($code, $text) = doctor();
    is($code, 0, 'exit code');
    cmp_ok(time - $start, '<', 2, 'quick');
    like($text, qr/watcher\@127\S+ answered within 0\.\d\d s: \d+\.\d+\S*/,
        'whom it asked');
    like($text, qr/refusals +none was counted in \d+ connection attempts/,
        'refusals');
    like($text, qr/peak +at most \d of 12 connections/, 'peak');
    like($text, qr/thread cache +\d+ connections are too few/, 'thread cache');
    like($text, qr/now +\d+ of 12 connections are in use; \d+ of \d+ in the/,
        'connections now');
    like($text, qr/- watcher \(the guard\): 2, of them 1 asleep for up/,
        'the guard itself');
    like($text, qr/limits +12 is the least of max_connections 12, max_user/,
        'limits');
    like($text, qr/PROCESS +watcher sees the connections of other accounts/,
        'PROCESS');
    like($text, qr/goes on through a full server\. Only a new one/,
        'monitoring at a full server');
    like($text, qr/budget +\d tokens, 0 out now: \d = min\(max_connections 12/,
        'the budget, and why');
    my ($rate, $hold, $n) = $text
        =~ m{ N = ([\d.]+) x ([\d.]+) = ([\d.]+) tokens of \d };
    ok($rate, "Little's law") or return diag $text;
    cmp_ok(abs($rate * $hold - $n), '<', 0.02, '... N = rate x hold');
    cmp_ok($hold, '>=', 0.2, '... the hold');
    like($text, qr/^0 things to look at/m, 'nothing to do');
    unlike($text, qr/^!|->/m, '... and no mark');
};

subtest 'refusals, and a full server at some time' => sub {
    my $clients = clients(11);
    # One more than max_connections is taken by root: others see the door.
    my $root = clients(1, 'root');
    {
        # The client says what it meets.
        open my $stderr, '>&', \*STDERR or die "dup: $!";
        open STDERR, '>', '/dev/null';
        ok(!eval { $db->sql('SELECT 1'); 1 }, 'even root sees it closed');
        open STDERR, '>&', $stderr;
    }
    close $_->[1] for @$root;
    waitpid $_->[0], 0 for @$root;
    wait_until(sub { eval { $db->sql('SELECT 1') } }, 10, 'room for root');
    leave($clients);
    my ($code, $text) = doctor();
    is($code, 0, 'exit code');
    like($text, qr/^! refusals +\d+\.\d\d % of the connection attempts were /m,
        'a share');
    like($text, qr/\d+ of \d+, in \d+ s, which is too short for a rate a day/,
        'no rate a day from half a minute');
    like($text, qr/^! peak +13 of 12 connections.*?it was full/m, 'peak');
    like($text, qr/^ {14}-> .*^[2-9] things to look at/ms, 'what to do');
    $db->sql('FLUSH STATUS');
    sleep 3.2;
    ($code, $text) = doctor();
    like($text, qr/FLUSH STATUS was used \d s ago/, 'FLUSH STATUS is noticed');
    like($text, qr/refusals +none was counted/, '... and begins anew');
};

subtest 'full while it asks' => sub {
    my $clients = clients(11);
    wait_until(sub { $apache->status_auto->{DBGuardDatabaseState} == 2 }, 5,
        'the monitor to see it');
    my ($code, $text) = doctor();
    is($code, 4, 'exit code');
    like($text, qr/^! database +\S+ is full: .*\(error 1040: Too many conn/m,
        'state and errno');
    like($text, qr/-> see what holds its connections/, 'what to do');
    like($text, qr/The monitor's own connection was there before, and got an/,
        'whose figures');
    like($text, qr/- app: 11, of them 11 asleep for up to \d s/,
        'who holds them');
    leave($clients);
};

subtest 'full, and CONNECTION ADMIN' => sub {
    ask_as('admin');
    my $clients = clients(11);
    my ($code, $text) = doctor();
    is($code, 0, 'it gets in');
    like($text, qr/a new one gets in as well, since admin may use the one/,
        'and says why');
    like($text, qr/^! peak +13 of 12/m, 'peak');
    leave($clients);
};

subtest 'what an account may not do' => sub {
    ask_as('blind');
    my ($code, $text) = doctor();
    is($code, 0, 'exit code');
    like($text, qr/^! PROCESS +was not granted to blind, which sees no conn/m,
        'no PROCESS');
    like($text, qr/-> GRANT PROCESS ON \*\.\* TO/, 'what to do');
    like($text, qr/now +\d of 12 connections are in use, \d of them run/,
        'what is known nevertheless');
    like($text, qr/unless a role gives it; nobody else is connected now/,
        'what cannot be known');
    ask_as('member');
    my $clients = clients(1);
    ($code, $text) = doctor();
    like($text, qr/member sees the connections of other accounts \(by a role/,
        'PROCESS by a role');
    leave($clients);
    ask_as('limited');
    ($code, $text) = doctor();
    like($text, qr/limited has a limit of its own: 9/, "an account's limit");
};

subtest 'an account that is not let in' => sub {
    ask_as('watcher', file => 'wrong', nowait => 1);
    wait_until(sub { $apache->status_auto->{DBGuardDatabaseState} == 5 }, 10,
        'denied');
    my ($code, $text) = doctor();
    is($code, 4, 'exit code');
    like($text, qr/is denied: .*\(error 1045: Access denied/, 'errno');
    like($text, qr/-> check the account of DBGuardDatabase/, 'what to do');
    ask_as('watcher', file => 'missing', nowait => 1);
    ($code, $text) = doctor();
    is($code, 4, 'no such file');
    like($text, qr{DBGuardPasswordFile \S+/missing cannot be read: No such},
        'its whole name');
};

# A monitor of ours: what it is given, and what doctor makes of it.
sub fake
{
    my ($script, $code) = @_;
    my $file = $stack->dir . '/fake';
    local $ENV{DBGUARD_MONITOR} = $file;
    spew($file, "#!/bin/sh\n$script\n", 0755);
    my $start = time;
    my @answer = doctor();
    is($answer[0], 4, 'exit code');
    cmp_ok(time - $start, '<', 3, 'in time');
    return $answer[1];
}

subtest 'how the monitor is called' => sub {
    ask_as('watcher');
    my $text = fake('args="$*"; env=$(env | grep -c Xq7secret);'
        . ' lines=$(grep -c "^password Xq7secret");'
        . ' printf "error 2000\ntext user %s, args %s, env %s, stdin %s\nend\n"'
        . ' "$(id -un)" "$args" "$env" "$lines"');
    my $user = $> == 0 ? 'www-data' : getpwuid $>;
    like($text, qr/user $user, args --probe, env 0, stdin 1\)/,
        'rights of the User, the password on standard input only');
    like(fake('exec sleep 20'), qr/no word within two seconds/, 'silent');
    like(fake('exec yes'), qr/no word within two seconds/, 'babbling');
    like(fake('echo error 0; echo end'), qr/no word/, 'nonsense');
    like(fake('exit 127'), qr{/fake cannot be run: is it installed}, 'missing');
};

subtest 'a database that hangs' => sub {
    $db->pause;
    my ($seen, $ps) = (0, '');
    my $start = time;
    my $pid = open(my $out, '-|') // die "fork: $!";
    if (!$pid) {
        exec DBGuard::Stack::dbguardctl(), '-f', $apache->scoreboard, 'doctor';
    }
    while (time < $start + 1.5) {
        for my $process (glob '/proc/[0-9]*') {
            next if $process eq "/proc/$$";
            my $shown = slurp("$process/cmdline") . slurp("$process/environ");
            $seen ||= index($shown, '--probe') >= 0;
            $ps .= $process if index($shown, $secret) >= 0;
        }
        sleep 0.05;
    }
    my $text = do { local $/; <$out> };
    close $out;
    is($? >> 8, 4, 'exit code');
    cmp_ok(time - $start, '<', 3, 'it answers within three seconds');
    $everything .= $text;
    like($text, qr/is stalled: .*\(error 2013/s, 'state and errno');
    like($text, qr/-> look at the database host/, 'what to do');
    ok($seen, 'the probe was seen');
    is($ps, '', '... and in no process the password');
    $db->resume;
    wait_until(sub { $apache->status_auto->{DBGuardDatabaseState} == 1 }, 10,
        'ok again');
};

subtest 'a database that is stopped' => sub {
    $db->stop;
    wait_until(sub { $apache->status_auto->{DBGuardDatabaseState} == 4 }, 10,
        'down');
    my ($code, $text) = doctor();
    is($code, 4, 'exit code');
    like($text, qr/is down: .*\(error 2002: /, 'state and errno');
    like($text, qr/-> start it, or correct host, port or socket/, 'what to do');
};

subtest 'without a server' => sub {
    # SIGKILL leaves the scoreboard behind.
    $db->start;
    $apache->kill;
    my ($code, $text) = doctor();
    is($code, 3, 'httpd killed: exit code');
    like($text, qr/is not running; these are its last figures/, '... says so');
    like($text, qr/answered within/, '... and asks nevertheless');
    $apache->start;
    $apache->stop;
    ($code, $text) = doctor();
    is($code, 1, 'httpd stopped: exit code');
    like($text, qr/no scoreboard there: is the server running/, '... says so');
};

is(index($everything, $secret), -1, 'the password is in no output');
done_testing;
