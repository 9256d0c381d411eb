# The lint: what a configtest, a start, a reload, httpd -D DUMP_DBGUARD and
# dbguardctl lint say of limits that do not fit, and how long they take.
use strict;
use warnings;
use FindBin;
use lib "$FindBin::Bin/lib";
use Test::More;
use Time::HiRes qw(time);
use DBGuard::Stack qw(wait_until spew);

my $password = 'dreadfully-secret-4711';
my $stack = DBGuard::Stack->new(
    # A limit of accounts can be changed only where there is one.
    db => {
        max_connections => 24, options => ['--max-user-connections=100'],
    },
    apache => {
        workers => 192, start_servers => 8, php => 1,
        docroot_config => 'DBGuard On',
    });
my ($db, $apache) = ($stack->db, $stack->apache);
my $httpd = DBGuard::Apache::httpd();
my $file = $stack->dir . '/pw';
my $said = '';

$db->start;
$db->sql("CREATE USER dbguard\@127.0.0.1 IDENTIFIED BY '$password';"
    . ' GRANT PROCESS ON *.* TO dbguard@127.0.0.1;');
spew($file, "$password\n", 0600);

sub database
{
    my ($host) = @_;
    $host //= '127.0.0.1:' . $db->port;
    return "DBGuardEngine On\nDBGuardDatabase mariadb://dbguard\@$host\n"
        . "DBGuardPasswordFile $file\n";
}

sub configure { $apache->set(config => join "\n", @_) }

# Exit code, output and seconds of httpd with these arguments.
sub httpd
{
    my $start = time;
    local %ENV = (%ENV, $apache->preload);
    my ($code, $out) = DBGuard::Process::run($httpd, '-f',
        $apache->config_file, @_);
    $said .= $out;
    return ($code, $out, time - $start);
}

# A configtest that succeeds within three seconds and says all of this.
sub configtest_says
{
    my ($name, @wanted) = @_;
    my ($code, $out, $took) = httpd('-t');

    is($code, 0, "$name: exit code") or diag $out;
    cmp_ok($took, '<', 3, sprintf '%s: took %.2f s', $name, $took);
    like($out, $_, $name) for @wanted;
    return $out;
}

# A sentence may be longer than a line of this file.
sub sentence
{
    my $regex = join ' ', @_;
    return qr/$regex/;
}

my $mismatch = sentence('DBGUARD0051: lint: workers-database: warning: Apache',
    'may start 192 workers, the database allows 24 connections: 8\.0 times as',
    'many.*; remedy: .*MaxRequestWorkers 21, or max_connections 214');

subtest 'the mismatch' => sub {
    configure(database());
    my $out = configtest_says('a configtest', $mismatch, qr/Syntax OK/);
    my @lines = $out =~ /DBGUARD\d+/g;
    is(scalar(@lines), 1, '... and nothing else') or diag $out;

    configure(database(), 'DBGuardEngine DryRun');
    configtest_says('DryRun',
        qr/workers-database: error: .* DryRun keeps none of them out/);
    configure(database(), 'DBGuardEngine Off');
    unlike((httpd('-t'))[1], qr/DBGUARD/, 'Off: nothing is said');
    configure(database(), 'DBGuardLint off');
    unlike((httpd('-t'))[1], qr/DBGUARD/, 'DBGuardLint off: nothing is said');
};

subtest 'refuse' => sub {
    configure(database(), 'DBGuardLint refuse');
    my ($code, $out) = httpd('-t');
    isnt($code, 0, 'a configtest fails');
    like($out, $mismatch, '... says why');
    like($out, qr/DBGUARD0068: DBGuardLint refuse: .*1 finding above/,
        '... and that this is the reason');

    my $failure = $apache->try_start;
    like($failure, $mismatch, 'a start fails');
    ($code, $out) = httpd('-k', 'start');
    isnt($code, 0, '... also one that would leave the terminal')
        or httpd('-k', 'stop');
    is((httpd('-S'))[0], 0, 'httpd -S does not');

    $apache->set(workers => 24);
    is((httpd('-t'))[0], 0, 'as many workers as connections: no failure');
    $apache->set(workers => 192);
};

subtest 'the database cannot be asked' => sub {
    configure(database(), 'DBGuardLint refuse');
    $db->pause;
    configtest_says('it hangs', sentence('DBGUARD0050: lint: database:',
        'warning: the database could not be checked: stalled, .*',
        'MaxRequestWorkers 192 was compared with nothing'));
    my $start = time;
    is($apache->try_start, undef, 'a start succeeds');
    cmp_ok(time - $start, '<', 3.5, '... in time');
    $apache->stop;
    $db->resume;

    spew($file, "wrong\n", 0600);
    configtest_says('a wrong password', sentence('could not be checked:',
        'denied, .*error 1045.* remedy: check the account'));
    spew($file, "$password\n", 0600);

    $db->stop;
    configtest_says('it is down', sentence('could not be checked:',
        'down, .*error 2002.* remedy: start it'));
    $db->start;
    configure(database());
    local $ENV{DBGUARD_MONITOR} = '/nonexistent';
    configtest_says('there is no dbguard-monitor',
        qr{: /nonexistent cannot be executed \(No such file or directory\)});
};

subtest 'what else the configuration says' => sub {
    my $dir = $stack->dir;
    spew("$dir/mpm.conf", "# nothing\n<IfModule mpm_prefork.c>\n"
        . "  MaxRequestWorkers 5\n</IfModule>\n"
        . "<IfModule mpm_prefork_module>\n</IfModule>\n"
        . "<IfModule prefork.c>\n</IfModule>\n");
    spew("$dir/pw644", "$password\n", 0644);
    configure(database('localhost:' . $db->port),
        "DBGuardPasswordFile $dir/pw644", "Include $dir/mp?.conf",
        'MaxRequestWorkers 300', 'KeepAliveTimeout 15', 'DBGuardReserve 0',
        'DBGuardBudget 30', 'DBGuardQueue length=500',
        'php_admin_flag mysqli.allow_persistent On', "<VirtualHost *>",
        'RemoteIPHeader X-Forwarded-For', '</VirtualHost>');
    $apache->set(modules => ['remoteip'], docroot_config => '');
    configtest_says('a bad one',
        qr/guarded-scope: warning: nothing is guarded/,
        qr/workers-database: error: .* none of them is guarded/,
        qr/budget-room: error: DBGuardBudget 30 is more than the 24/,
        qr/reserve: warning: DBGuardReserve 0/,
        qr/queue-length: warning: of 192 workers 24 may hold a token and 500/,
        qr/localhost-port: warning: .* port \d+/,
        qr/password-file: error: .*pw644 has mode 0644/,
        sentence('server-limit: warning: MaxRequestWorkers 300 is written',
            '\(.*httpd.conf:\d+\), 192 are in effect: ServerLimit is 192'),
        qr/keepalive: warning: under prefork .* for 15 s/,
        qr/remoteip: warning: RemoteIPHeader \(.*httpd.conf:\d+\) without/,
        qr/persistent-config: warning: mysqli.allow_persistent On/,
        qr/mpm-block: warning: <IfModule mpm_prefork.c> \(.*mpm.conf:2\)/);

    configure(database(), 'RemoteIPInternalProxy 10.0.0.1',
        'RemoteIPHeader X-Forwarded-For', 'KeepAliveTimeout 5',
        'php_admin_value mysqli.allow_persistent 0');
    $apache->set(docroot_config => 'DBGuard On');
    my $out = configtest_says('a good one', $mismatch);
    is(scalar(() = $out =~ /DBGUARD\d+/g), 1, '... nothing else') or diag $out;
    $apache->set(modules => []);
};

subtest 'limits of accounts' => sub {
    configure(database());
    $db->sql('SET GLOBAL max_user_connections = 12');
    configtest_says('max_user_connections',
        qr/allows 12 connections \(max_user_connections\): 16\.0 times/,
        qr/account-limit: info: max_user_connections 12 is below/);
    $db->sql('SET GLOBAL max_user_connections = 100');
};

subtest 'DUMP_DBGUARD' => sub {
    configure(database());
    my ($code, $out) = httpd('-t', '-D', 'DUMP_DBGUARD');
    is($code, 0, 'exit code');
    like($out, qr/^effective configuration\n  DBGuardEngine +On$/m,
        'the configuration');
    like($out, qr/^  DBGuardQueue length .*\n +MaxRequestWorkers \d+ - the /m,
        '... derived');
    like($out, qr/^warning   workers-database \(DBGUARD0051\)\n +Apache may/m,
        'what is wrong');
    like($out, qr/^fine      reserve .*\n +of 24 connections the reserve/m,
        'what is fine');
    like($out, qr/^warnings and errors: 1$/m, 'how much');
    unlike($out, qr/\[dbguard:/, 'nothing twice');
    configure('DBGuardEngine Off');
    like((httpd('-t', '-D', 'DUMP_DBGUARD'))[1],
        qr/there is no DBGuardDatabase/, 'also when Off');
};

subtest 'a running server' => sub {
    configure(database());
    $apache->start;
    like($apache->error_log, $mismatch, 'the error log has the mismatch');
    wait_until(sub {
        $apache->status_auto->{DBGuardDatabaseState} == 1;
    }, 5, 'the first answer');
    my ($code, $out) = $apache->ctl('lint');
    $said .= $out;
    is($code, 4, 'dbguardctl lint: exit code') or diag $out;
    like($out, qr/^warning   workers-database.*\n +Apache may start 192 work/m,
        '... the mismatch');
    like($out, qr/^fine      memory .*\n +192 processes of [\d.]+ MiB/m,
        '... the memory of the workers');

    $apache->set(workers => 200);
    configtest_says('another ServerLimit',
        sentence('server-limit-restart: warning: ServerLimit 200 \(.*\)',
            'is not in effect: the running server keeps 192'));
    $apache->set(workers => 192);
};

subtest 'persistent connections' => sub {
    my @busy = map { $apache->get_async('/p.php?s=1&p=1') } 1 .. 6;
    is($_->response->{status}, 200, 'a page with one') for @busy;
    my $out;
    wait_until(sub {
        $out = ($apache->ctl('lint'))[1];
        $out =~ /^warning   persistent-live/m;
    }, 15, sub { "persistent-live in\n$out" });
    like($out, qr/6 connections of the account 'app' sleep and no token/,
        'they are seen and named');
};

subtest 'a reload' => sub {
    # How many tokens there are now does not matter here.
    my $line = qr/workers-database: warning: Apache may start 192 workers/;
    my $before = () = $apache->error_log =~ /$line/g;
    configure(database(), 'DBGuardLint refuse');
    $apache->restart;
    ok($apache->running, 'goes on with DBGuardLint refuse');
    cmp_ok(scalar(() = $apache->error_log =~ /$line/g), '>', $before,
        '... and says the same');

    $db->pause;
    my $start = time;
    $apache->restart;
    cmp_ok(time - $start, '<', 1.5, 'does not wait for the database');
    $db->resume;

    is((httpd('-k', 'graceful'))[0], 0, 'httpd -k graceful works');
    ok($apache->running, '... and the server runs');
    is((httpd('-k', 'stop'))[0], 0, 'httpd -k stop works');
    wait_until(sub { !$apache->running }, 10, 'the end');
    $apache->stop;
};

# The module itself is new: then nothing may fail or wait, either.
subtest 'a reload that brings the module' => sub {
    $apache->set(guard => 0, docroot_config => '', config => '');
    $apache->start;
    $apache->set(guard => 1, docroot_config => 'DBGuard On');
    configure(database(), 'DBGuardLint refuse');
    $db->pause;
    my $start = time;
    $apache->restart;
    ok($apache->running, 'it runs');
    cmp_ok(time - $start, '<', 1.5, 'it did not wait');
    $db->resume;
    $apache->stop;
};

unlike($said . $apache->error_log, qr/\Q$password\E/,
    'the password is nowhere');

done_testing;
