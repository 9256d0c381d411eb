# The budget that follows the database: its live limits, the reserve, what
# others hold, DBGuardBudget as a cap, what is known after a restart without a
# database; and that it can always be read why the budget is what it is.
use strict;
use warnings;
use FindBin;
use lib "$FindBin::Bin/lib";
use Test::More;
use Time::HiRes qw(sleep time);
use DBGuard::Stack qw(wait_until slurp spew);

# Holds so many connections of an account until its gate is opened; notes how
# many it got. Not guarded: it is one of the others.
my $others = <<'END';
<?php
mysqli_report(MYSQLI_REPORT_OFF);
[$user, $password] = $_GET['user'] == 'limited'
    ? ['limited', 'limits'] : [getenv('DB_USER'), getenv('DB_PASSWORD')];
$all = [];
for ($i = 0; $i < $_GET['n']; $i++) {
    $c = @new mysqli('127.0.0.1', $user, $password, null, (int) $_GET['port']);
    if (!$c->connect_errno) {
        $all[] = $c;
    }
}
$file = dirname(__DIR__) . '/sessions/' . basename($_GET['gate']);
file_put_contents("$file.got", count($all));
for ($i = 0; $i < 6000 && !file_exists("$file.open"); $i++) {
    usleep(10000);
    clearstatcache();
}
END

my $stack = DBGuard::Stack->new(
    db => { max_connections => 24, options => ['--max-user-connections=100'] },
    apache => {
        workers => 20, start_servers => 4, php => 1,
        docroot_config => "DBGuard On\n<Files others.php>\nDBGuard Off\n"
            . '</Files>',
        files => { 'others.php' => $others },
    });
my ($apache, $db) = ($stack->apache, $stack->db);
my $state_file = $apache->scoreboard . '.budget';
spew("$stack->{dir}/password", "sekrit\n", 0600);
spew("$stack->{dir}/password2", "limits\n", 0600);

sub config
{
    my ($more, $account, $password) = @_;
    $account //= 'dbguard';
    $password //= 'password';
    return "DBGuardEngine On\n"
        . "DBGuardDatabase mariadb://$account\@127.0.0.1:$db->{port}\n"
        . "DBGuardPasswordFile $stack->{dir}/$password\n" . ($more // '');
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

# Every look at the status is also one at a file that needs no database.
sub auto
{
    my $file = $apache->get('/static.txt');
    die "a file was answered with $file->{status}" if $file->{status} != 200;
    return $apache->status_auto;
}

# The reason as dbguardctl and as server-status give it.
sub whys
{
    my (undef, $text) = $apache->ctl('status');
    my $html = $apache->get('/server-status')->{body};
    return ($text =~ /^budget +(.*)$/m, $html =~ /Budget: (.*?)</);
}

# A sum that comes out, and says the budget; or what is wrong with it.
sub sum_is_wrong
{
    my ($why, $budget) = @_;
    my ($sum, $limits, $reserve, $others, $more) = $why
        =~ /^(\d+) = min\((.*?)\) - reserve (\d+) - others (\d+)(.*)$/
        or return 'no sum';
    my ($limit) = sort { $a <=> $b } $limits =~ / (\d+)/g;
    my $base = $limit - $reserve - $others;
    return "not $budget" if $sum != $budget;
    return '' if $more ne '' && $sum <= ($base > 1 ? $base : 1);
    return $sum == $base ? '' : "not $base";
}

# Waits until the budget is one of these, up to the time; then checks that the
# reasons that are given are true, and the same.
sub becomes
{
    my ($wanted, $within, $name, $why) = @_;
    my %wanted = map { $_ => 1 } ref $wanted ? @$wanted : $wanted;
    my ($is, $begin) = (-1, time);

    my $ok = eval {
        wait_until(sub { $wanted{ $is = auto()->{DBGuardBudget} } }, $within,
            '');
    };
    return fail("$name: the budget is $is, not "
        . join(' or ', sort keys %wanted)) if !$ok;
    note sprintf '%s: %d after %.1f s', $name, $is, time - $begin;
    # A poll may come between the two views; a reload's is yet to come.
    my @whys;
    for (1 .. 5) {
        $is = auto()->{DBGuardBudget};
        @whys = whys();
        last if @whys == 2 && $whys[0] eq $whys[1]
            && $is == auto()->{DBGuardBudget} && !sum_is_wrong($whys[0], $is);
        sleep 0.3;
    }
    is($whys[0], $whys[1], "$name: dbguardctl and server-status agree");
    is(sum_is_wrong($whys[0], $is), '', "$name: $whys[0]");
    like($whys[0], $why, "$name: the reason is named") if $why;
}

my %open;

sub others_hold
{
    my ($n, $gate, $user) = @_;
    my $file = $apache->dir . "/sessions/$gate";
    $open{$gate} = $apache->get_async("/others.php?n=$n&gate=$gate&user="
        . ($user // 'app') . '&port=' . $db->port);
    wait_until(sub { -s "$file.got" }, 20, 'the others to connect');
    is(slurp("$file.got"), $n, "others hold $n connections");
}

sub others_leave
{
    my ($gate) = @_;
    spew($apache->dir . "/sessions/$gate.open", '');
    (delete $open{$gate})->response;
}

# As the configuration test and dbguardctl do.
sub ask
{
    my ($user, $password) = @_;
    my $program = $ENV{DBGUARD_MONITOR}
        // DBGuard::Stack::builddir() . '/dbguard-monitor';
    open my $in, '|-', "exec $program --probe >/dev/null" or die "$program: $!";
    print $in "user $user\nhost 127.0.0.1\nport $db->{port}\n"
        . "password $password\n\n";
    close $in or die "$program: $?";
}

sub last_line
{
    my ($id) = @_;
    my @lines = $apache->error_log =~ /$id: (.*)/g;
    return $lines[-1] // '';
}

$db->start;
$db->sql("CREATE USER dbguard\@127.0.0.1 IDENTIFIED BY 'sekrit';"
    . 'GRANT PROCESS ON *.* TO dbguard@127.0.0.1;'
    . "CREATE USER limited\@127.0.0.1 IDENTIFIED BY 'limits'"
    . ' WITH MAX_USER_CONNECTIONS 8;'
    . 'GRANT PROCESS ON *.* TO limited@127.0.0.1;');
$apache->set(config => config());
$apache->start;

subtest 'from the first answer on' => sub {
    like(last_line('DBGUARD0001'), qr/at most 7 requests/,
        'a safe value before it');
    becomes([21, 20], seconds(2), 'auto');
    is(auto()->{DBGuardDatabaseState}, 1, 'the state is ok');
    is(auto()->{DBGuardDatabaseMaxConnections}, 24, 'the limit is shown');
    is(auto()->{DBGuardQueueLength}, 0,
        'no place to wait where the budget takes all workers');
    becomes(21, 15, 'nobody else');
    wait_until(sub { slurp($state_file) eq "21\n" }, 5, 'the state file');
    pass('it is remembered');
};

# The client that sets the variable may be seen as one of the others.
subtest 'SET GLOBAL max_connections' => sub {
    $db->sql('SET GLOBAL max_connections = 12');
    becomes([9, 8], seconds(2), 'lower', qr/max_connections 12\b/);
    cmp_ok(auto()->{DBGuardQueueLength}, '>=', 3,
        'there is more room to wait');
    $db->sql('SET GLOBAL max_connections = 24');
    becomes([21, 20], seconds(2), 'higher', qr/max_connections 24\b/);
};

subtest 'SET GLOBAL max_user_connections' => sub {
    $db->sql('SET GLOBAL max_user_connections = 10');
    becomes([7, 6], seconds(2), 'lower',
        qr/max_connections 24, max_user_connections 10/);
    $db->sql('SET GLOBAL max_user_connections = 100');
    becomes([21, 20], seconds(2), 'higher');
};

subtest 'connections of others' => sub {
    becomes(21, 15, 'before');
    others_hold(6, 'six');
    becomes(15, seconds(2), 'six', qr/others 6/);
    my $begin = time;
    others_leave('six');
    my $stays = 0;
    $stays++ while auto()->{DBGuardBudget} == 15 && time < $begin + 6
        && sleep 0.2;
    cmp_ok(time - $begin, '>=', 6, 'they count a while after they left')
        or diag "$stays times";
    becomes(21, 15, 'gone', qr/others 0/);
    cmp_ok(time - $begin, '<', 10 + seconds(2), 'that is a window of 10 s');
};

subtest 'DBGuardBudget N is a cap' => sub {
    reload('DBGuardBudget 5');
    like(last_line('DBGUARD0001'), qr/at most 5 requests/, 'at once');
    becomes(5, seconds(2), 'below', qr/, at most DBGuardBudget$/);
    others_hold(17, 'many');
    becomes(4, seconds(2), 'less is less', qr/others 17$/);
    others_leave('many');
    reload('DBGuardBudget 100');
    becomes(21, 15, 'above');
};

subtest 'DBGuardReserve' => sub {
    my @cases = (['6', 18], ['50%', 12], ['0', 24], ['5%', 22], ['auto', 21]);
    for (@cases) {
        my ($reserve, $budget) = @$_;
        my $before = auto()->{DBGuardBudget};
        reload("DBGuardReserve $reserve");
        like(last_line('DBGUARD0001'), qr/at most $before requests/,
            'a reload keeps the live budget');
        becomes($budget, 15, "DBGuardReserve $reserve");
    }
};

subtest "the limit of the application's account" => sub {
    reload('', 'limited', 'password2');
    wait_until(sub { auto()->{DBGuardDatabaseState} == 1
        && $db->sql('SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE'
            . " USER = 'limited'") == 1 }, 10, 'the other account');
    # Two monitors for a moment, and others that ask once.
    reload('', 'limited', 'password2') for 1 .. 2;
    ask('limited', 'limits') for 1 .. 10;
    becomes([21, 20, 19], seconds(2), "the monitor's own limit is none");
    unlike((whys())[0], qr/account/, 'and is not named');
    others_hold(1, 'shared', 'limited');
    # One poll with two of them is no proof.
    becomes([4, 3, 2], 12, 'an account of 8 that is shared',
        qr/account 8\)/);
    others_leave('shared');
    reload('');
};

subtest 'what is known without a database' => sub {
    my $start = sub {
        my ($config) = @_;
        $apache->stop;
        $apache->set(config => config($config));
        $apache->start;
        return last_line('DBGUARD0001') =~ /at most (\d+) requests/ ? $1 : -1;
    };

    $apache->stop;
    spew($state_file, "19\n");
    $db->kill;
    is($start->(), 19, 'the last good value');
    wait_until(sub { auto()->{DBGuardDatabaseState} == 4 }, 5, 'state down');
    is($apache->get('/p.php')->{status}, 503, 'a guarded request is refused');
    is(auto()->{DBGuardBudget}, 19, 'an error does not change it');
    is(slurp($state_file), "19\n", 'nor the file');
    is($start->('DBGuardBudget 5'), 5, 'DBGuardBudget caps it');
    is(slurp($state_file), "19\n", 'and is not written down');
    for my $bad ('', "abc\n", "0\n", "4294967295\n") {
        spew($state_file, $bad);
        is($start->(), 7, '7 where the file says ' . $bad =~ s/\n/\\n/r);
    }
    unlink $state_file;
    is($start->(), 7, '7 without a file');
    $db->start;
    wait_until(sub { auto()->{DBGuardDatabaseState} == 1 }, 10, 'state ok');
    becomes([1 .. 20], 5, 'when it comes, it rises',
        qr/rising after an outage/);
    isnt(slurp($state_file), "1\n", 'which is no value to remember');
};

done_testing;
