# The segment in shared memory: made, owned, replaced and removed when it should
# be, never when it should not, and carried over an upgrade of the module.
use strict;
use warnings;
use FindBin;
use lib "$FindBin::Bin/lib";
use File::Copy qw(copy);
use IO::Socket::INET;
use POSIX ();
use Test::More;
use DBGuard::Stack qw(wait_until slurp spew builddir);
use DBGuard::Topic qw(topic ends_with_topic is_figures);

my %files = ('run.php' => <<'END');
<?php
// Runs until the test opens ?gate=, and notes from when to when.
$begin = hrtime(true);
$dir = dirname(__DIR__) . '/sessions';
register_shutdown_function(function () use ($begin, $dir) {
    file_put_contents("$dir/spans", $begin . ' ' . hrtime(true) . "\n",
        FILE_APPEND | LOCK_EX);
});
$gate = "$dir/gate." . basename($_GET['gate'] ?? '');
while (isset($_GET['gate']) && !file_exists($gate)
    && hrtime(true) < $begin + 60e9) {
    usleep(2000);
    clearstatcache();
}
echo getmypid();
END

sub server
{
    my ($config, %arg) = @_;
    my $stack = DBGuard::Stack->new(apache => {
        workers => 2, config => "DBGuardEngine On\n$config",
        docroot_config => 'DBGuard On', %arg,
    });
    ends_with_topic($stack);
    return $stack->apache;
}

sub php_server
{
    my ($budget, $queue) = @_;
    return server("DBGuardBudget $budget\n"
            . "DBGuardQueue length=$queue patience=60s\n",
        workers => 24, php => 1, files => \%files);
}

my $gates = 0;

# A request that runs until open_gate: [request, gate].
sub gated
{
    my ($apache) = @_;
    my $name = ++$gates;
    return [$apache->get_async("/run.php?gate=$name"), $name];
}

sub open_gate
{
    my ($apache, @gated) = @_;
    spew($apache->dir . "/sessions/gate.$_->[1]", '') for @gated;
}

sub statuses { map { $_->[0]->response->{status} } @_ }

# So many of them, one after the other, when so many hold and wait already.
sub line_up
{
    my ($apache, $held, $waiting, $budget, $number) = @_;
    return map {
        my $one = gated($apache);
        $held < $budget ? $held++ : $waiting++;
        is_figures($apache, $held, $waiting, 'one more');
        $one;
    } 1 .. $number;
}

# What every layout has at its beginning.
sub prefix
{
    my ($file) = @_;
    my %prefix;
    @prefix{qw(magic layout pid size held waiting)}
        = unpack 'Z8 L L Q L L', substr slurp($file), 0, 32;
    return \%prefix;
}

sub inode { (stat $_[0])[1] }

# Says which file it is and what is in it.
sub state_of
{
    my ($file) = @_;
    my @is = lstat $file or return 'nothing';
    return join ' ', @is[0, 1, 2, 4, 5, 7, 9],
        -l _ ? readlink $file : -f _ ? unpack('%32C*', slurp($file)) : '';
}

topic 'made at the start, removed by a stop' => sub {
    my $apache = server('');
    my $file = $apache->scoreboard;

    is(($apache->configtest)[0], 0, 'a configtest before the start');
    ok(!-e $file, '... makes nothing');
    $apache->start;
    my @is = stat $file;
    is(sprintf('%o', $is[2] & 07777), '640', 'mode');
    my ($uid, $gid) = $> == 0 ? (0, (getpwnam 'www-data')[3]) : ($>, $is[5]);
    is_deeply([@is[4, 5]], [$uid, $gid], 'owner and group');
    my $prefix = prefix($file);
    is($prefix->{magic}, 'DBGUARD', 'magic');
    is($prefix->{pid}, $apache->parent, 'owner');
    is($prefix->{size}, $is[7], 'size');
    is($is[12] * 512 >= $is[7], 1, 'all its blocks are allocated');
    is(($apache->stop // 0) & 127, 0, 'an orderly end');
    ok(!-e $file, 'a stop removes it');
    is(($apache->configtest)[0], 0, 'a configtest after the stop');
    ok(!-e $file, '... makes nothing');
};

topic 'what a configtest and its like do to a live one' => sub {
    my $apache = server('', modules => ['info']);
    my $file = $apache->scoreboard;
    $apache->start;
    local %ENV = (%ENV, $apache->preload);

    # The parent looks for dead processes every ten seconds and notes when;
    # hence twice.
    for my $option ('-t', '-t -D DUMP_RUN_CFG', '-S', '-M', '-V') {
        my ($before, $after);
        for (1, 2) {
            $before = state_of($file);
            DBGuard::Process::run(DBGuard::Apache::httpd(), '-f',
                $apache->config_file, split / /, $option);
            $after = state_of($file);
            last if $before eq $after;
        }
        is($after, $before, "$option: nothing");
    }
    my $inode = inode($file);
    my $starts = $apache->generations;
    DBGuard::Process::run(DBGuard::Apache::httpd(), '-f', $apache->config_file,
        '-k', 'graceful');
    wait_until(sub { $apache->generations > $starts }, 10, 'a restart');
    is(inode($file), $inode, '-k graceful: the same one');
    unlike($apache->error_log, qr/DBGUARD00(?:0[6-9]|10|13)/, 'not a word');
};

topic 'what is left by kill -9 of everything is replaced' => sub {
    my $apache = php_server(2, 2);
    my $file = $apache->scoreboard;
    $apache->start;
    my $parent = $apache->parent;
    my @all = map { gated($apache) } 1 .. 4;
    is_figures($apache, 2, 2, 'two hold, two wait');

    $apache->kill;
    ok(-e $file, 'it is left behind');
    is(prefix($file)->{held}, 2, '... with its holders');
    my ($code, $text) = $apache->ctl('status');
    is($code, 3, 'dbguardctl: the server is gone');
    like($text, qr/\b$parent\b.*not running/, '... in words');

    $apache->start;
    like($apache->error_log, qr/DBGUARD0006: .*\Q$file\E.* $parent /,
        'replaced at the next start, as the log says');
    is(prefix($file)->{pid}, $apache->parent, '... by one of its own');
    is_figures($apache, 0, 0, 'and empty');
    is($apache->get('/run.php')->{status}, 200, 'requests are served');

    # The file of a start that was killed before it got far.
    my @begun = ('' => 'an empty file', "DBGUARD\0" => 'the magic alone',
        "DBGUARD\0" . "\0" x 300_000 => 'a file without a layout');
    while (my ($content, $what) = splice @begun, 0, 2) {
        $apache->stop;
        spew($file, $content);
        my $failure = $apache->try_start;
        is($failure, undef, "$what is replaced");
        $apache->start if defined $failure && unlink $file;
        isnt(prefix($file)->{layout}, 0, '... by a good one');
    }
};

topic 'two servers' => sub {
    my $one = php_server(1, 1);
    my $two = php_server(1, 1);
    $_->start for $one, $two;

    my $holder = gated($one);
    is_figures($one, 1, 0, 'in one server');
    is_figures($two, 0, 0, 'in the other one');
    is($two->get('/run.php')->{status}, 200, 'its token is its own');
    $two->stop;
    is_figures($one, 1, 0, 'its end changes nothing here');

    my $file = $one->scoreboard;
    my ($inode, $pid) = (inode($file), $one->parent);
    $two->set(config => "DBGuardEngine On\nDBGuardScoreboard $file\n");
    like($two->try_start, qr/DBGUARD0008: .*\Q$file\E.*\b$pid\b/,
        'with the same scoreboard it does not start, and says whose it is');
    is(inode($file), $inode, 'the first one keeps its own');
    is_figures($one, 1, 0, 'and its figures');
    my $waiter = gated($one);
    is_figures($one, 1, 1, 'who comes still has to wait');
    open_gate($one, $holder, $waiter);
    is_deeply([statuses($holder, $waiter)], [200, 200], 'and is served');
    $one->stop;
    ok(!-e $file, 'it is removed by its owner');
    is($two->try_start, undef, 'then the other one starts');
    is(prefix($file)->{pid}, $two->parent, '... and owns it');
};

topic 'what is not a scoreboard is left alone' => sub {
    my $apache = server('');
    my $file = $apache->scoreboard;
    my $other = $apache->dir . '/other';
    spew($other, "somebody's text\n" x 10);

    my %make = (
        'a short text' => sub { spew($file, "hello\n"); 1 },
        'a long text' => sub { spew($file, "hello\n" x 1000); 1 },
        'a directory' => sub { mkdir $file },
        'a link to a text' => sub { symlink $other, $file },
        'a link to nothing' => sub { symlink "$other.missing", $file },
        'a FIFO' => sub { POSIX::mkfifo($file, 0600) },
    );
    for my $what (sort keys %make) {
        $make{$what}->() or die "$what: $!";
        my @before = map { state_of($_) } $file, $other;
        like($apache->try_start // 'it started', qr/DBGUARD0009: .*\Q$file\E/,
            "$what: no start");
        is_deeply([map { state_of($_) } $file, $other], \@before,
            '... and it is untouched');
        $apache->stop;
        -d $file ? rmdir $file : unlink $file;
    }
    ok(!-e "$other.missing", 'nothing was made behind a link');
    is($apache->try_start, undef, 'with nothing in its way it starts');
};

my $mounted;
END { DBGuard::Process::run('umount', $mounted) if $mounted }

topic 'where none can be made' => sub {
    my $apache = server('');
    my $dir = $apache->dir . '/place';
    my $refused = sub {
        my ($file, $what) = @_;
        $apache->set(config => "DBGuardEngine On\nDBGuardScoreboard $file\n");
        like($apache->try_start // 'it started', qr/DBGUARD0010: .*\Q$file\E/,
            "$what: no start");
        $apache->stop;
        ok(!-e $file, '... and nothing is left there');
        return if $what eq 'a full disk';
        my $line = 1 + grep { !/^DBGuardScoreboard/ } map { split /\n/ }
            slurp($apache->config_file) =~ /\A(.*?)^DBGuardScoreboard/ms;
        my ($code, $text) = $apache->configtest;
        isnt($code, 0, '... a configtest fails, too');
        my @ours = $text =~ /DBGUARD\d+: .*/g;
        is(scalar(@ours), 1, '... with one line');
        like($ours[0], qr/DBGuardScoreboard\ \Q$file\E,
            \ \Q@{[$apache->config_file]}\E:$line\b/x,
            '... file, line and value');
    };

    $refused->("$dir/x", 'a directory that is not there');
    spew("$dir.file", '');
    $refused->("$dir.file/x", 'a directory that is a file');
    mkdir $dir;
    SKIP: {
        if ($> != 0) {
            chmod 0555, $dir;
            $refused->("$dir/x", 'a directory that may not be written');
            skip 'only root can mount', 1;
        }
        my ($code, $why) = DBGuard::Process::run(
            qw(mount -t tmpfs -o size=64k dbguard), $dir);
        skip "mount is not permitted here: $why", 1 if $code != 0;
        $mounted = $dir;
        $refused->("$dir/x", 'a full disk');
        DBGuard::Process::run('mount', '-o', 'remount,ro', $dir);
        $refused->("$dir/x", 'a disk that is read-only');
        DBGuard::Process::run('umount', $dir);
        undef $mounted;
    }
    $apache->set(config => "DBGuardEngine On\n");
    is($apache->try_start, undef, 'where it can be made it starts');
    $apache->set(config => "DBGuardEngine On\nDBGuardScoreboard $dir.no/x\n");
    isnt(($apache->configtest)[0], 0,
        'a configtest beside it finds a wrong one');
    {
        local %ENV = (%ENV, $apache->preload);
        DBGuard::Process::run(DBGuard::Apache::httpd(), '-f',
            $apache->config_file, '-k', 'stop');
    }
    wait_until(sub { !$apache->running }, 10, 'the end of the server');
    pass('... and httpd -k stop does not mind');
    $apache->stop;
    $apache->set(config => "DBGuardEngine Off\nDBGuardScoreboard $dir.no/x\n");
    is(($apache->configtest)[0], 0, 'nor does anybody when the engine is Off');
};

topic 'deleted while the server runs' => sub {
    my $apache = php_server(2, 2);
    my $place = $apache->runtime_dir . '/place';
    mkdir $place;
    my $file = "$place/board";
    $apache->set(config => "$apache->{config}DBGuardScoreboard place/board\n");
    $apache->start;
    my $holder = gated($apache);
    is_figures($apache, 1, 0, 'one holds');

    # Where no new one can be made, the old one goes on.
    unlink $file;
    rmdir $place;
    $apache->restart('graceful');
    $apache->wait_log(qr/:error\].*DBGUARD0018: .*\Q$file\E/);
    is_figures($apache, 1, 0, 'a reload, nothing made: it still holds');
    my $second = gated($apache);
    is_figures($apache, 2, 0, 'a second one');
    my $waiter = gated($apache);
    is_figures($apache, 2, 1, 'a third one waits');
    open_gate($apache, $second, $waiter);
    is_deeply([statuses($second, $waiter)], [200, 200], '... and is served');

    mkdir $place;
    my @old = $apache->workers;
    $apache->restart('graceful');
    like($apache->error_log, qr/:warn\].*DBGUARD0018: .*\Q$file\E.*\(1\)/,
        'a reload, and a new one is made');
    is(prefix($file)->{pid}, $apache->parent, '... by this server');
    wait_until(sub { grep({ kill 0 => $_ } @old) == 1 }, 10,
        'the idle ones of the old workers to end');
    my @new = line_up($apache, 0, 0, 1, 2);
    pass('the old holder counts');
    is((DBGuard::Process::run(DBGuard::Stack::dbguardctl(), '-f', $file,
        'status'))[0], 0, 'dbguardctl finds it');
    open_gate($apache, $holder);
    is_deeply([statuses($holder)], [200], 'the old holder is served');
    is_figures($apache, 2, 0, '... and its token is free');
    open_gate($apache, @new);
    is_deeply([statuses(@new)], [200, 200], 'so are the new ones');
    is_figures($apache, 0, 0, 'the end');
    unlike($apache->error_log, qr/DBGUARD0007/, 'no word of an upgrade');
    $apache->stop;
    ok(!-e $file, 'removed by the stop');
};

topic 'another name in a reload' => sub {
    my $apache = php_server(1, 1);
    $apache->start;
    my $inode = inode($apache->scoreboard);
    my $holder = gated($apache);
    is_figures($apache, 1, 0, 'one holds');

    $apache->set(config => "$apache->{config}DBGuardScoreboard other.board\n");
    $apache->restart('graceful');
    like($apache->error_log, qr/DBGUARD0013: .*other\.board/,
        'the log says no');
    is(inode($apache->scoreboard), $inode, 'the old one is in use');
    ok(!-e $apache->runtime_dir . '/other.board', 'there is no other one');
    my $waiter = gated($apache);
    is_figures($apache, 1, 1, 'the holder counts');
    open_gate($apache, $holder, $waiter);
    is_deeply([statuses($holder, $waiter)], [200, 200], 'both are served');

    $apache->stop;
    ok(!-e $apache->scoreboard, 'removed by the stop');
    $apache->start;
    ok(-e $apache->runtime_dir . '/other.board', 'a start takes the new name');
    ok(!-e $apache->scoreboard, '... and not the old one');
};

topic 'a piped logger comes and goes' => sub {
    my $apache = server('');
    my $log = $apache->dir . '/log/piped.log';
    $apache->set(config => "DBGuardEngine On\n"
        . "CustomLog \"|/usr/bin/tee -a $log\" \"%r\"\n");
    $apache->start;
    my $file = $apache->scoreboard;
    my $inode = inode($file);
    my $logger = sub {
        (grep { slurp("/proc/$_/cmdline") =~ /tee\0/ }
            DBGuard::Process::children_of($apache->parent))[0];
    };
    my $works = sub {
        my ($what) = @_;
        my $path = "/static.txt?" . ++$gates;
        is($apache->get($path)->{status}, 200, "$what: requests are served");
        wait_until(sub { slurp($log) =~ /\Q$path\E/ }, 10, 'the logger');
        is(inode($file), $inode, '... and the segment is there');
    };

    $works->('with a logger');
    for my $signal (qw(KILL TERM)) {
        my $pid = wait_until($logger, 10, 'a logger');
        kill $signal => $pid;
        wait_until(sub { my $new = $logger->(); $new && $new != $pid }, 10,
            'another logger');
        $works->("after its SIG$signal");
    }
    # An old worker may take one more request, and has the old logger.
    my $replaced = sub {
        my (@old) = @_;
        wait_until(sub { !grep { kill 0 => $_ } @old }, 10, 'the old to go');
        wait_until(sub { $apache->workers > 0 }, 10, 'the new to come');
    };
    for my $how (qw(graceful hard)) {
        my @old = $apache->workers;
        $apache->restart($how);
        $replaced->(@old);
        $works->("after a $how restart");
    }
    my @old = $apache->workers;
    kill KILL => @old;
    $replaced->(@old);
    $works->('after the death of all workers');
    $apache->stop;
    ok(!-e $file, 'removed by the stop');
};

# ---- an upgrade: the same module, built with another layout

my $next = builddir() . '/t/.libs/mod_dbguard_next.so';

# Starts with a copy of the module that can be replaced, as a package does.
sub upgradable
{
    my $apache = php_server(@_);
    my $module = $apache->dir . '/mod_dbguard.so';
    copy($apache->{module}, $module) or die "$module: $!";
    $apache->set(module => $module);
    $apache->start;
    return $apache;
}

# Returns when all of the old workers but so many are gone: until then the idle
# ones among them may take a request.
sub upgrade
{
    my ($apache, $busy, $how) = @_;
    my $module = $apache->{module};
    my @old = $apache->workers;
    copy($next, "$module.new") or die "$next: $!";
    rename "$module.new", $module or die "$module: $!";
    $apache->restart($how // 'graceful');
    wait_until(sub { grep({ kill 0 => $_ } @old) == $busy }, 10,
        'the idle ones of the old workers to end');
}

# The most that ran at once, of those that have ended.
sub most_at_once
{
    my ($apache) = @_;
    my @spans = split /\n/, slurp($apache->dir . '/sessions/spans');
    my @events = sort { $a->[0] <=> $b->[0] || $a->[1] <=> $b->[1] }
        map { my ($begin, $end) = split; ([$begin, 1], [$end, -1]) } @spans;
    my ($now, $most) = (0, 0);
    for (@events) {
        $now += $_->[1];
        $most = $now if $now > $most;
    }
    return $most;
}

SKIP: {
    skip "$next is not built", 4 if !-e $next;

    topic 'an upgrade while requests run' => sub {
        my $apache = upgradable(4, 8);
        my $file = $apache->scoreboard;
        my $inode = inode($file);
        my @old = line_up($apache, 0, 0, 4, 3);
        pass('three of the old build hold');
        my @before = $apache->workers;
        # The one that has held for the shortest time is the last of them.
        my $victim = (($apache->ctl('status'))[1]
            =~ /^holds +\S+ +(\d+)/mg)[-1];

        upgrade($apache, 3);
        like($apache->error_log, qr/DBGUARD0007: .* layout \d+\b.* 99\b/,
            'the log says so');
        isnt(inode($file), $inode, 'there is a new segment');
        is(prefix($file)->{layout}, 99, '... of the new layout');
        my ($code, $text) = $apache->ctl('status');
        is($code, 1, 'the old dbguardctl cannot read it');
        like($text, qr/another version/, '... and says why');

        my @new = line_up($apache, 0, 0, 1, 4);
        pass('one token is left for four new ones');
        open_gate($apache, $new[0]);
        is_deeply([statuses($new[0])], [200], 'one ends');
        is_figures($apache, 1, 2, 'the next one has its token');
        open_gate($apache, $old[1]);
        is_deeply([statuses($old[1])], [200], 'an old one ends');
        is_figures($apache, 2, 1, 'its token goes to a new one');

        # Nobody knows any more what this one had in the old segment; the end
        # of its generation tells.
        kill KILL => $victim;
        wait_until(sub { !kill 0 => $victim }, 5, 'it to be reaped');
        open_gate($apache, @old);
        is_deeply([statuses(@old)], [200, 200, 0],
            'one old one was killed, two are served');
        wait_until(sub { !grep { kill 0 => $_ } @before }, 10,
            'the old workers to go');
        my @more = map { gated($apache) } 1 .. 3;
        is_figures($apache, 4, 2, 'now the whole budget is the new ones\'');

        $apache->restart('graceful');
        is_figures($apache, 4, 2, 'a further restart changes nothing');
        is(prefix($file)->{layout}, 99, '... nor the layout');
        open_gate($apache, @new, @more);
        is_deeply([grep { $_ != 200 } statuses(@new, @more)], [], 'all served');
        is_figures($apache, 0, 0, 'the end');
        cmp_ok(most_at_once($apache), '<=', 4,
            'old and new together never were more than the budget');
        $apache->stop;
        ok(!-e $file, 'a stop removes the new segment');
    };

    topic 'two old generations' => sub {
        my $apache = upgradable(2, 4);
        my @first = $apache->workers;
        my $oldest = gated($apache);
        is_figures($apache, 1, 0, 'one holds');
        $apache->restart('graceful');
        wait_until(sub { grep({ kill 0 => $_ } @first) == 1 }, 10,
            'the other workers of its generation to end');
        my %first = map { $_ => 1 } @first;
        my @middle = grep { !$first{$_} } $apache->workers;
        my $old = gated($apache);
        is_figures($apache, 2, 0, 'one of the next generation holds');
        upgrade($apache, 2);

        my @new = line_up($apache, 0, 0, 0, 3);
        pass('two old ones hold, so nobody else does');
        open_gate($apache, $old);
        is_deeply([statuses($old)], [200], 'the younger old one ends');
        is_figures($apache, 1, 2, 'one token');
        wait_until(sub { !grep { kill 0 => $_ } @middle }, 10,
            'its generation to end');
        open_gate($apache, $new[0]);
        is_deeply([statuses($new[0])], [200], 'one new one ends');
        is_figures($apache, 1, 1, 'still one token: the oldest counts');
        open_gate($apache, $oldest, @new);
        is_deeply([statuses($oldest, @new[1, 2])], [(200) x 3], 'all served');
        is_figures($apache, 0, 0, 'the end');
        is(most_at_once($apache), 2, 'never more than the budget');
    };

    topic 'old requests without a token' => sub {
        my $apache = upgradable(2, 4);
        my @old = map { gated($apache) } 1, 2;
        is_figures($apache, 2, 0, 'two hold');
        my $waits = gated($apache);
        is_figures($apache, 2, 1, 'one waits');
        my $name = ++$gates;
        my $slow = IO::Socket::INET->new(PeerAddr => '127.0.0.1',
            PeerPort => $apache->port) or die "connect: $!";
        syswrite $slow, "GET /run.php?gate=$name HTTP/1.0\r\n";
        wait_until(sub { $apache->status_auto->{Scoreboard} =~ /R/ }, 10,
            'a worker to read a slow one');

        # The new build knows what those have that hold. What it does not know
        # of must not be given a token by the old one.
        upgrade($apache, 3);
        is_deeply([statuses($waits)], [503], 'who waited is told to come back');
        my $log = $apache->wait_log(qr/DBGUARD0022: .*/);
        like($log, qr/has replaced it in a reload/, '... the log knows why');
        unlike($apache->error_log, qr/DBGUARD0021/,
            '... which is not the budget');
        my @new = map { gated($apache) } 1, 2;
        is_figures($apache, 0, 2, 'new ones wait for the old ones');
        syswrite $slow, "\r\n";
        open_gate($apache, @old);
        is_deeply([statuses(@old)], [200, 200], 'the old ones end');
        is_figures($apache, 2, 0, 'the new ones have their tokens');
        # Should it run, it does so beside them until now.
        open_gate($apache, [undef, $name]);
        like(<$slow> // '', qr/ 503 /, 'the slow one is told to come back');
        open_gate($apache, @new);
        is_deeply([statuses(@new)], [200, 200], 'the new ones are served');
        is(most_at_once($apache), 2, 'never more than the budget at once');
        is_figures($apache, 0, 0, 'the end');
    };

    topic 'an upgrade by a hard restart' => sub {
        my $apache = upgradable(2, 4);
        my @old = map { gated($apache) } 1 .. 3;
        is_figures($apache, 2, 1, 'two hold, one waits');
        upgrade($apache, 0, 'hard');
        is(prefix($apache->scoreboard)->{layout}, 99, 'a new segment');
        is_deeply([statuses(@old)], [0, 0, 0], 'the old requests are gone');
        my @new = map { gated($apache) } 1 .. 3;
        is_figures($apache, 2, 1, 'the whole budget is the new ones\'');
        open_gate($apache, @new);
        is_deeply([statuses(@new)], [200, 200, 200], 'they are served');
        is_figures($apache, 0, 0, 'the end');
    };
}

done_testing;
