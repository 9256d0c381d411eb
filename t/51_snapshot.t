# Snapshots: a line of JSON every so often, every second while the database is
# full; they survive logrotate, a full disk is one warning, and nobody waits
# for them.
use strict;
use warnings;
use FindBin;
use lib "$FindBin::Bin/lib";
use Test::More;
use JSON::PP qw(decode_json);
use Time::HiRes qw(sleep time);
use DBGuard::Stack qw(wait_until slurp spew);

# Takes every connection that is to be had, until its gate is opened.
my $others = <<'END';
<?php
mysqli_report(MYSQLI_REPORT_OFF);
$all = [];
$open = dirname(__DIR__) . '/sessions/open';
for ($i = 0; $i < 6000 && !file_exists($open); $i++) {
    do {
        $c = @new mysqli('localhost', getenv('DB_USER'), getenv('DB_PASSWORD'),
            null, 0, getenv('DB_SOCKET'));
    } while (!$c->connect_errno && $all[] = $c);
    usleep(100000);
    clearstatcache();
}
END

my $stack = DBGuard::Stack->new(
    db => { max_connections => 12 },
    apache => { workers => 12, start_servers => 3, php => 1,
        docroot_config => "DBGuard On\n<Files others.php>\nDBGuard Off\n"
            . '</Files>',
        files => { 'others.php' => $others } });
my ($apache, $db) = ($stack->apache, $stack->db);
my $dir = $stack->dir;
my $file = "$dir/snapshots.json";
spew("$dir/password", "sekrit\n", 0600);

sub config
{
    my ($more) = @_;
    return "DBGuardEngine On\n"
        . "DBGuardDatabase mariadb://dbguard\@127.0.0.1:@{[$db->port]}\n"
        . "DBGuardPasswordFile $dir/password\n" . ($more // '');
}

sub reload
{
    $apache->set(config => config(@_));
    $apache->restart('graceful');
}

# The lines as hashes; dies when one is no JSON.
sub snapshots
{
    my ($name) = @_;
    my @lines = split /\n/, slurp($name // $file);
    return map { eval { decode_json($_) } // die "no JSON: $_" } @lines;
}

sub more_lines
{
    my ($n, $within, $name) = @_;
    my $before = () = snapshots($name);
    wait_until(sub { snapshots($name) >= $before + $n }, $within,
        "$n more lines");
    my @all = snapshots($name);
    return @all[$before .. $#all];
}

sub second
{
    my ($h, $m, $s) = $_[0]{time} =~ /T(\d\d):(\d\d):(\d\d)Z$/;
    return $h * 3600 + $m * 60 + $s;
}

# Seconds from the first to the last of them, for each step.
sub step
{
    my $span = second($_[-1]) - second($_[0]);
    return ($span < 0 ? $span + 86400 : $span) / (@_ - 1);
}

sub warnings
{
    my ($id) = @_;
    my $lines = () = $apache->error_log =~ /$id:/g;
    return $lines;
}

$db->start;
$db->sql("CREATE USER dbguard\@127.0.0.1 IDENTIFIED BY 'sekrit';"
    . 'GRANT PROCESS ON *.* TO dbguard@127.0.0.1;');

subtest 'no file, no snapshots' => sub {
    $apache->set(config => config());
    $apache->start;
    wait_until(sub { $apache->status_auto->{DBGuardDatabaseState} == 1 }, 10,
        'ok');
    # A reload with a bad value keeps what was: none.
    reload("DBGuardSnapshot every=abc\n");
    $apache->wait_log(qr/DBGUARD0012: .*every/);
    sleep 2;
    is_deeply([grep { -e } map { "$_/none" } $apache->dir, $dir], [],
        'a refused reload makes no file of that name');
};

subtest 'every so often' => sub {
    reload("DBGuardSnapshot every=2s file=$file\n");
    wait_until(sub { -s $file }, 10, 'the file');
    is((stat $file)[2] & 07777, 0640, 'its mode');
    is((stat _)[4], $>, 'its owner is the one who started httpd');
    my @lines = more_lines(3, 15);
    my $step = step(@lines);
    cmp_ok($step, '>=', 1.4, "every two seconds: $step");
    cmp_ok($step, '<=', 3, 'not less');
    my $last = $lines[-1];
    like($last->{time}, qr/^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$/, 'the time');
    is($last->{state}, 'ok', 'the state');
    is($last->{$_}, $apache->status_auto->{ {
        budget => 'DBGuardBudget', held => 'DBGuardHeld',
        waiting => 'DBGuardWaiting',
        max_connections => 'DBGuardDatabaseMaxConnections' }->{$_} }, $_)
        for qw(budget held waiting max_connections);
    my ($own) = grep { $_->{user} eq 'dbguard' } @{ $last->{users} };
    is($own->{total}, 1, "the monitor's account has one connection");
    is_deeply([sort keys %$own],
        [qw(longest_active longest_sleep sleeping total user)],
        'what is known of an account');
};

subtest 'every second while it is full' => sub {
    my $one = $apache->get_async('/others.php');
    wait_until(sub { $apache->status_auto->{DBGuardDatabaseState} == 2 }, 10,
        'full');
    more_lines(1, 5);
    my @lines = more_lines(4, 15);
    is((grep { $_->{state} eq 'full' } @lines), @lines + 0, 'the state');
    my $step = step(@lines);
    cmp_ok($step, '<', 1.7, "every second: $step");
    my ($app) = grep { $_->{user} eq 'app' } @{ $lines[-1]{users} };
    cmp_ok($app->{total}, '>=', 11, 'who has the connections');
    is($app->{sleeping}, $app->{total}, 'and that they sleep');
    cmp_ok($app->{longest_sleep}, '>=', 2, 'for so long');
    spew($apache->dir . '/sessions/open', '');
    $one->response;
};

subtest 'logrotate' => sub {
    wait_until(sub { $apache->status_auto->{DBGuardDatabaseState} == 1 }, 10,
        'ok');
    rename $file, "$file.1" or die "$file: $!";
    $apache->restart('graceful');
    wait_until(sub { -s $file }, 10, 'the new file');
    my $old = slurp("$file.1");
    more_lines(1, 10);
    is(slurp("$file.1"), $old, 'the old one is left alone');
    cmp_ok(scalar(() = snapshots("$file.1")), '>=', 8, 'and is whole');
};

subtest 'a file that cannot be made' => sub {
    reload("DBGuardSnapshot file=$dir/no/such/folder/x\n");
    $apache->wait_log(qr{DBGUARD0037: .*no/such/folder});
    is($apache->get('/p.php')->{status}, 200, 'is said, and that is all');
};

my $small = "$dir/small";
END { system "umount $small 2>/dev/null" if $small && -d $small && !$> }

subtest 'a full disk' => sub {
    plan skip_all => 'only root can mount a small disk' if $> != 0;
    mkdir $small;
    plan skip_all => 'no disk can be mounted here'
        if system("mount -t tmpfs -o size=16k none $small 2>/dev/null") != 0;
    my $name = "$small/snapshots";
    reload("DBGuardSnapshot every=1s file=$name\n");
    wait_until(sub { -s $name }, 10, 'the file');
    # Fills the disk, so that of the next line a part has room at most: what is
    # left of the file's last block.
    my $fill = sub {
        open my $out, '>>', $name or die $!;
        my $room = 4096 - (-s $name) % 4096;
        $room += 4096 if $room < 100;
        syswrite $out, '{"pad":"' . 'x' x ($room - 60) . "\"}\n";
        open $out, '>', "$small/ballast" or die $!;
        1 while syswrite $out, 'x' x 512;
    };
    my $warned = sub { warnings('DBGUARD0033') };

    $fill->();
    wait_until(sub { $warned->() == 1 }, 25, 'the warning');
    like($apache->error_log, qr/dbguard:warn.*DBGUARD0033: .*space left/,
        'it says why');
    sleep 3;
    is($warned->(), 1, 'it says so once');
    is($apache->get('/p.php')->{status}, 200, 'requests are served');
    is($apache->status_auto->{DBGuardDatabaseStale}, 0, 'polls go on');

    unlink "$small/ballast";
    my $lines = () = slurp($name) =~ /\n/g;
    wait_until(sub { (() = slurp($name) =~ /\n/g) >= $lines + 2 }, 10,
        'lines again');
    is(eval { scalar(() = snapshots($name)) > 0 }, 1, 'each is a line of JSON')
        or diag $@;
    $fill->();
    wait_until(sub { $warned->() == 2 }, 25, 'the second warning');
    pass('a disk that is full again is a second warning');
    reload("DBGuardSnapshot every=2s file=$file\n");
};

done_testing;
