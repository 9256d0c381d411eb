# A database that is there and does not let the guard in: wrong password, no
# such account, a locked one, TLS on one side only, an authentication that the
# client cannot do, "localhost" with a port. Errno and remedy are in one
# message, the last good budget stays, and the site stays open.
use strict;
use warnings;
use FindBin;
use lib "$FindBin::Bin/lib";
use Test::More;
use Time::HiRes qw(sleep time);
use DBGuard::Stack qw(wait_until slurp spew);

my $stack = DBGuard::Stack->new(
    db => { max_connections => 24 },
    apache => { workers => 20, start_servers => 4, php => 1,
        docroot_config => 'DBGuard On' });
my ($apache, $db) = ($stack->apache, $stack->db);
my $dir = $stack->dir;
my $program = $ENV{DBGUARD_MONITOR}
    // DBGuard::Stack::builddir() . '/dbguard-monitor';
spew("$dir/password", "sekrit\n", 0600);
spew("$dir/wrong", "not-the-password\n", 0600);

# Asks once. What it said as a hash, with the exit code and the time.
sub ask
{
    my (%how) = (user => 'dbguard', host => '127.0.0.1', socket => '',
        port => $db->port, tls => 0, password => 'sekrit', @_);
    my $begin = time;
    my $env = delete $how{env} // '';
    spew("$dir/question",
        join '', (map { "$_ $how{$_}\n" } sort keys %how), "\n");
    my $text = `$env $program --probe < $dir/question`;
    return { (map { /^(\S+) (.*)$/ ? ($1 => $2) : () } split /\n/, $text),
        exit => $? >> 8, seconds => time - $begin };
}

sub says
{
    my ($name, $state, $error, $text, @how) = @_;
    my $a = ask(@how);
    is("$a->{state} $a->{error}", "$state $error", "$name: $state $error");
    like($a->{text}, $text, "$name: $a->{text}");
    is($a->{exit}, $error == 0 ? 0 : 1, "$name: exit code");
    cmp_ok($a->{seconds}, '<', 2.5, "$name: in time");
    return $a;
}

sub config
{
    my ($more, $password, $options) = @_;
    $options //= '';
    $password //= 'password';
    return "DBGuardEngine On\n"
        . "DBGuardDatabase mariadb://dbguard\@127.0.0.1:$db->{port} $options\n"
        . "DBGuardPasswordFile $dir/$password\n" . ($more // '');
}

sub reload
{
    $apache->set(config => config(@_));
    $apache->restart('graceful');
}

sub state_is
{
    my ($state, $name) = @_;
    ok(eval { wait_until(
        sub { $apache->status_auto->{DBGuardDatabaseState} == $state }, 8,
        '') }, $name) or diag $apache->status_auto->{DBGuardDatabaseState};
}

sub restart_db
{
    my (@options) = @_;
    $db->stop;
    $db->{options} = [@options];
    $db->start;
}

my %accounts = (
    dbguard => "BY 'sekrit'",
    locked => "BY 'sekrit' ACCOUNT LOCK",
    expired => "BY 'sekrit' PASSWORD EXPIRE",
    tlsonly => "BY 'sekrit' REQUIRE SSL",
    peer => 'VIA unix_socket',
    shop1040 => "BY 'sekrit'",
    hourly => "BY 'sekrit' WITH MAX_QUERIES_PER_HOUR 1",
    nothing => "BY 'sekrit'",
);

$db->start;
$db->sql(join '', map {
    "CREATE USER $_\@127.0.0.1 IDENTIFIED $accounts{$_};"
        . ($_ eq 'nothing' ? '' : "GRANT PROCESS ON *.* TO $_\@127.0.0.1;")
} sort keys %accounts);

subtest 'what an account may not' => sub {
    says('all is well', 'ok', 0, qr/^$/);
    says('wrong password', 'denied', 1045, qr/Access denied/,
        password => 'wrong');
    says('no password', 'denied', 1045, qr/using password: NO/,
        password => '');
    says('no such account', 'denied', 1045, qr/Access denied/,
        user => 'nobody');
    says('a number in the name', 'denied', 1045, qr/shop1040/,
        user => 'shop1040', password => 'wrong');
    says('a locked account', 'denied', 4151, qr/locked/, user => 'locked');
    says('an expired password', 'denied', 1820, qr/SET PASSWORD/,
        user => 'expired');
    says('by the socket only', 'denied', 1698, qr/Access denied/,
        user => 'peer');
    is(ask(user => 'hourly')->{state}, 'ok', 'a question an hour: the first');
    says('the second', 'denied', 1226, qr/max_queries_per_hour/,
        user => 'hourly');
    # Without PROCESS it sees its own connections only; that is enough for a
    # budget.
    says('no privilege at all', 'ok', 0, qr/^$/, user => 'nothing');
};

subtest 'where it is not' => sub {
    my $port = DBGuard::Stack::free_port();
    says('nobody listens', 'down', 2002, qr/127\.0\.0\.1.*\(111\)/,
        port => $port);
    says('no such socket', 'down', 2002, qr/nowhere\.sock/, host => '',
        socket => "$dir/nowhere.sock", port => 0);
    says('no such host', 'down', 2005, qr/db1040\.invalid/,
        host => 'db1040.invalid');
    # libmariadb would take the socket, and ask the wrong server.
    says('localhost with a port', 'ok', 0, qr/^$/, host => 'localhost');
    is(ask(host => 'localhost')->{max_connections}, 24, 'it was the right one');
    says('localhost, another port', 'down', 2002, qr/Can't connect to server/,
        host => 'localhost', port => $port);
};

subtest 'TLS on one side only' => sub {
    says('the server has none', 'denied', 2026, qr/TLS|SSL/, tls => 1);
    says('an account that needs it', 'denied', 1045, qr/./,
        user => 'tlsonly');

    system("openssl req -x509 -newkey rsa:2048 -nodes -days 30"
        . " -subj /CN=127.0.0.1 -keyout $dir/key.pem -out $dir/cert.pem"
        . ' 2>/dev/null') == 0 or plan skip_all => 'openssl is needed';
    chmod 0644, "$dir/key.pem";
    restart_db("--ssl-cert=$dir/cert.pem", "--ssl-key=$dir/key.pem",
        '--require-secure-transport=ON', '--max-connections=10');
    says('both have it', 'ok', 0, qr/^$/, tls => 1);
    says('the account, with it', 'ok', 0, qr/^$/, tls => 1,
        user => 'tlsonly');
    my $a = ask();
    is($a->{state}, 'denied', "the server insists: $a->{error} $a->{text}");
    says('wrong password, with it', 'denied', 1045, qr/Access denied/,
        tls => 1, password => 'wrong');
    restart_db();
};

subtest 'an authentication that the client cannot do' => sub {
    plan skip_all => 'no plugin ed25519' if !eval {
        $db->sql("INSTALL SONAME 'auth_ed25519'; CREATE USER ed\@127.0.0.1"
            . " IDENTIFIED VIA ed25519 USING PASSWORD('sekrit')") // 1; 1 };
    says('with the plugin', 'ok', 0, qr/^$/, user => 'ed');
    # By the version, the library says so itself or lets the server say no.
    my $a = ask(user => 'ed', env => "MARIADB_PLUGIN_DIR=$dir/none");
    is($a->{state}, 'denied', "without it: $a->{error} $a->{text}");
};

subtest 'the site stays open' => sub {
    $apache->set(config => config());
    $apache->start;
    state_is(1, 'ok');
    wait_until(sub { $apache->status_auto->{DBGuardBudget} == 21 }, 15, '21');

    reload('', 'wrong');
    state_is(5, 'wrong password: denied');
    is($apache->status_auto->{DBGuardBudget}, 21, 'the last good budget stays');
    is($apache->get('/p.php')->{status}, 200, 'requests are served');
    my $line = $apache->wait_log(qr/DBGUARD0030: the database is denied.*/);
    like($line, qr/error 1045: Access denied.*budget 21/,
        'one message says what happened');
    like($line, qr/remedy: check the account.*DBGuardPasswordFile/,
        'and what to do');
    unlike($line, qr/not-the-password/, 'without the password');

    reload('DBGuardBudget 5', 'wrong');
    sleep 2.5;
    is($apache->status_auto->{DBGuardBudget}, 5,
        'a reload can lower it all the same');
    reload('DBGuardBudget auto', 'nowhere');
    $apache->wait_log(qr/DBGUARD0035: DBGuardPasswordFile \S*nowhere cannot/);
    pass('a password file that is not there is named');
    reload();
    state_is(1, 'the right password: ok');

    reload('', 'password', 'tls=on');
    state_is(5, 'TLS, and the server has none: denied');
    is($apache->get('/p.php')->{status}, 200, 'requests are served');
    reload();
    state_is(1, 'ok');
    $db->sql('ALTER USER dbguard@127.0.0.1 ACCOUNT LOCK');
    reload();
    state_is(5, 'the account is locked: denied');
    is($apache->get('/p.php')->{status}, 200, 'requests are served');
    $db->sql('ALTER USER dbguard@127.0.0.1 ACCOUNT UNLOCK');
    state_is(1, 'ok');

    is(join(' ', $apache->error_log =~ /003[01]: the database is (\w+)/g),
        'ok denied ok denied ok denied ok', 'one line for each change');
};

subtest 'a password where it does not belong' => sub {
    $apache->set(config => "DBGuardEngine On\n"
        . "DBGuardDatabase mariadb://dbguard:5ekr1t\@127.0.0.1\n");
    my ($code, $text) = $apache->configtest;
    isnt($code, 0, 'it is refused');
    like($text, qr/DBGuardPasswordFile/, 'and said where it belongs');
    unlike($text, qr/5ekr1t/, 'and is not repeated');
    $apache->restart('graceful');
    unlike($apache->error_log, qr/5ekr1t/, 'nor in the log');
    like($apache->error_log, qr/DBGUARD0012: /, 'which has it at a reload');
};

done_testing;
