# Restarts and reloads: requests of the old generation stay counted, limits
# change at once and for everybody, and nothing is left behind.
use strict;
use warnings;
use FindBin;
use lib "$FindBin::Bin/lib";
use IO::Select;
use IO::Socket::INET;
use POSIX ();
use Test::More;
use Time::HiRes qw(time sleep);
use DBGuard::Stack qw(wait_until slurp);
use DBGuard::Topic qw(topic ends_with_topic is_figures);

my %files = ('run.php' => <<'END');
<?php
// Runs for ?ms= milliseconds, or until the test opens ?gate=, and notes from
// when to when. Signals that the server sends end a sleep early.
$begin = hrtime(true);
$dir = dirname(__DIR__) . '/sessions';
register_shutdown_function(function () use ($begin, $dir) {
    file_put_contents("$dir/spans", $begin . ' ' . hrtime(true) . "\n",
        FILE_APPEND | LOCK_EX);
});
$gate = isset($_GET['gate']) ? "$dir/gate." . basename($_GET['gate']) : null;
$end = $begin + ($gate ? 60e9 : ($_GET['ms'] ?? 0) * 1e6);
while (hrtime(true) < $end && !($gate && file_exists($gate))) {
    usleep(2000);
    clearstatcache();
}
echo $_SERVER['DBGUARD_VERDICT'] ?? '-';
END

sub start
{
    my ($config, %arg) = @_;
    my $stack = DBGuard::Stack->new(apache => {
        workers => 24, php => 1, files => \%files,
        config => $config, docroot_config => 'DBGuard On', %arg,
    });
    ends_with_topic($stack);
    return $stack->start->apache;
}

sub config
{
    my ($budget, $queue, $engine) = @_;
    return 'DBGuardEngine ' . ($engine // 'On') . "\nDBGuardBudget $budget\n"
        . "DBGuardQueue length=$queue patience=60s\n";
}

# Returns when the idle ones of the old workers are gone: until then they may
# take a request.
sub reload
{
    my ($apache, $config) = @_;
    my @old = $apache->workers;
    # All but the one that answers this.
    my $busy = () = $apache->status_auto->{Scoreboard} =~ /[WG]/g;
    $apache->set(config => $config);
    $apache->restart('graceful');
    wait_until(sub { grep({ kill 0 => $_ } @old) < $busy }, 10,
        'the idle ones of the old workers to end');
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
    DBGuard::Stack::spew($apache->dir . "/sessions/gate.$_->[1]", '')
        for @gated;
}

sub statuses { map { $_->[0]->response->{status} } @_ }

sub figures
{
    my ($apache) = @_;
    my $s = $apache->status_auto;
    return ($s->{DBGuardHeld}, $s->{DBGuardWaiting});
}

# The most that ran at once, and how many ran.
sub overlap
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
    return ($most, scalar @spans);
}

# Clients in a process of their own, each of which asks again as soon as it
# has an answer. Returns a sub that ends them and returns how often each
# status came.
sub load
{
    my ($apache, $path, $clients) = @_;
    pipe my $answers, my $to_test or die;
    pipe my $until, my $to_load or die;
    my $pid = fork // die;
    if (!$pid) {
        close $to_load;
        my (%count, $ending);
        my @open = map { $apache->get_async($path) } 1 .. $clients;
        while (my $one = shift @open) {
            $ending ||= IO::Select->new($until)->can_read(0);
            if ($one->ready) {
                $count{ $one->response->{status} }++;
                next if $ending;
                $one = $apache->get_async($path);
            }
            push @open, $one;
            sleep 0.0005;
        }
        print $to_test join(' ', %count), "\n";
        close $to_test;
        POSIX::_exit(0);
    }
    close $to_test;
    return sub {
        close $to_load;
        my %count = split ' ', <$answers> // '';
        waitpid $pid, 0;
        return %count;
    };
}

# What could be left behind: files, descriptors, mappings of the parent, and
# IPC objects that any of its processes made.
sub belongings
{
    my ($apache) = @_;
    my $parent = $apache->parent;
    my %ours = map { $_ => 1 } DBGuard::Process::members($parent);
    my $run = $apache->runtime_dir;
    my @ipc = map {
        my ($names, @lines) = split /\n/, slurp("/proc/sysvipc/$_");
        map { my %of; @of{split ' ', $names} = split; $of{cpid} // () } @lines;
    } qw(shm sem msg);
    my $maps = slurp("/proc/$parent/maps");
    return {
        files => [sort map { s{.*/}{}r } glob "$run/* $run/.[a-z]*"],
        descriptors => scalar(my @fds = glob "/proc/$parent/fd/*"),
        segments => scalar(() = $maps =~ /scoreboard/g),
        shared => scalar(() = $maps =~ m{/dev/shm/|/SYSV}g),
        ipc => scalar(grep { $ours{$_} } @ipc),
    };
}

sub inode { (stat $_[0]->scoreboard)[1] }

topic 'five long requests, a graceful restart, then load' => sub {
    my $apache = start(config(5, 8));
    my @old = map { gated($apache) } 1 .. 5;
    is_figures($apache, 5, 0, 'five of the old generation hold');
    my @old_waiting = map { gated($apache) } 1, 2;
    is_figures($apache, 5, 2, '... and two wait');
    my @before = $apache->workers;

    $apache->restart('graceful');
    my $end = load($apache, '/run.php?ms=20', 10);
    wait_until(sub { (figures($apache))[1] == 8 }, 10, 'the load to wait');
    wait_until(sub { $apache->status_auto->{DBGuardRefusedTotal} > 100 }, 10,
        'and be refused');
    is($apache->status_auto->{DBGuardAdmittedTotal}, 5,
        'while the five hold, nobody else is admitted');

    open_gate($apache, @old[0, 1]);
    is_deeply([statuses(@old[0, 1])], [200, 200], 'two of the five end');
    is($apache->status_auto->{DBGuardAdmittedTotal}, 7,
        'those who waited since before the restart are next');
    open_gate($apache, @old_waiting, @old[2, 3]);
    is_deeply([statuses(@old_waiting, @old[2, 3])], [(200) x 4], 'all but one');
    wait_until(sub { (overlap($apache))[1] > 100 }, 10, 'a hundred to run');
    open_gate($apache, $old[4]);
    is_deeply([statuses($old[4])], [200], 'the last of the five');
    wait_until(sub { !grep { kill 0 => $_ } @before }, 10, 'old workers to go');
    wait_until(sub { (overlap($apache))[1] > 200 }, 10, 'a hundred more');

    my %count = $end->();
    my ($most, $ran) = overlap($apache);
    is($most, 5, 'never more than five ran at once, old and new together');
    is_deeply([grep { !/^(200|503)$/ } keys %count], [],
        'nothing but 200 and 503');
    is_figures($apache, 0, 0, 'the end');
    is($apache->status_auto->{DBGuardAdmittedTotal}, $ran,
        'what was admitted ran, no more');
};

topic 'twenty graceful restarts under load' => sub {
    my $apache = start(config(4, 6));
    $apache->get('/run.php');
    my $inode = inode($apache);
    my $before = belongings($apache);
    my $end = load($apache, '/run.php?ms=5', 14);
    my ($admitted, $backwards) = (0, 0);

    for (1 .. 20) {
        my $now;
        wait_until(sub {
            $now = $apache->status_auto->{DBGuardAdmittedTotal};
            $now < $admitted || $now >= $admitted + 10;
        }, 10, 'the load to run');
        $backwards++ if $now < $admitted;
        $admitted = $now;
        $apache->restart('graceful');
    }
    my %count = $end->();
    my ($most, $ran) = overlap($apache);
    diag join ', ', map { "$count{$_} x $_" } sort keys %count;
    is($backwards, 0, 'AdmittedTotal went on counting');
    is_deeply([grep { !/^(200|503)$/ } keys %count], [],
        'nothing but 200 and 503');
    is($most, 4, 'never more than the budget at once');
    is_figures($apache, 0, 0, 'the end');
    my $status = $apache->status_auto;
    is($status->{DBGuardAdmittedTotal}, $ran, 'what was admitted ran, no more');
    is($status->{DBGuardReleasedTotal}, $ran, '... and came back');
    is($status->{DBGuardReapedTotal}, 0, '... without help');
    is($status->{DBGuardRefusedBoardTotal}, 0, 'no slot was missing');
    is($status->{DBGuardRepairsTotal}, 0, 'nothing had to be repaired');
    is(inode($apache), $inode, 'the segment is the same');
    is_deeply(belongings($apache), $before, 'nothing is left behind')
        or diag explain [$before, belongings($apache)];
    is($before->{segments}, 1, 'one segment');
    is($before->{shared} + $before->{ipc}, 0, 'and no other shared memory');

    my @all = map { gated($apache) } 1 .. 10;
    is_figures($apache, 4, 6, 'every token and every place can be used');
    open_gate($apache, @all);
    is_deeply([grep { $_ != 200 } statuses(@all)], [],
        '... and all are served');
};

topic 'a reload changes the budget' => sub {
    my $apache = start(config(2, 8));
    my @first = map { gated($apache) } 1, 2;
    is_figures($apache, 2, 0, 'two hold');
    my @next = map { my $one = gated($apache);
        is_figures($apache, 2, $_, 'one more waits'); $one } 1 .. 4;

    reload($apache, config(5, 8));
    is_figures($apache, 5, 1, 'raised to five: three of the waiting get one');
    reload($apache, config(1, 8));
    is_figures($apache, 5, 1, 'lowered to one: nobody loses a token');
    is($apache->status_auto->{DBGuardBudget}, 1, 'the new budget is shown');
    for my $left (4, 3, 2, 1) {
        my $one = $left > 2 ? shift @first : shift @next;
        open_gate($apache, $one);
        is_deeply([statuses($one)], [200], 'one ends');
        is_figures($apache, $left, 1, 'nobody gets what is above the budget');
    }
    open_gate($apache, shift @next);
    is_figures($apache, 1, 0, 'the waiting one is admitted at the last');
    open_gate($apache, @next);
    is_deeply([statuses(@next)], [200], '... and served');

    # The queue likewise.
    my @all = map { gated($apache) } 1 .. 4;
    is_figures($apache, 1, 3, 'one holds, three wait');
    reload($apache, config(1, 1));
    is_figures($apache, 1, 3, 'a shorter queue: nobody is thrown out');
    is($apache->get('/run.php')->{status}, 503, '... and nobody gets in');
    open_gate($apache, @all);
    is_deeply([grep { $_ != 200 } statuses(@all)], [], 'all are served');
    is_figures($apache, 0, 0, 'the end');
};

topic 'On, DryRun, Off and On again' => sub {
    my $apache = start(config(1, 0));
    my $inode = inode($apache);
    my $verdict = sub {
        my $answer = $apache->get('/run.php');
        return $answer->{status} == 200 ? $answer->{body} : $answer->{status};
    };

    is($verdict->(), 'admitted', 'On: one is admitted');
    my $holder = gated($apache);
    is_figures($apache, 1, 0, 'one holds');
    is($verdict->(), 503, '... and the next is refused');

    reload($apache, config(1, 0, 'DryRun'));
    is($verdict->(), 'dryrun(budget)', 'DryRun: it runs, and is recorded');
    my $dry = gated($apache);
    wait_until(sub { $apache->status_auto->{DBGuardDryRunRefusedTotal} == 2 },
        10, 'another one to run');
    is_figures($apache, 1, 0, 'the figures are those that On would have');

    reload($apache, config(1, 0, 'Off'));
    is($verdict->(), '-', 'Off: nobody is asked');
    is($apache->get('/server-status')->{status}, 200, 'the status page works');
    is(inode($apache), $inode, 'the segment stays');

    reload($apache, config(1, 0));
    is_figures($apache, 2, 0, 'On: what runs is counted, above the budget too');
    is($verdict->(), 503, '... so the next is refused');
    open_gate($apache, $dry);
    is_deeply([statuses($dry)], [200], 'one of them ends');
    is_figures($apache, 1, 0, 'one is left');
    is($verdict->(), 503, '... which is the budget');
    open_gate($apache, $holder);
    is_deeply([statuses($holder)], [200], 'it ends');
    is_figures($apache, 0, 0, 'none is left');
    is($verdict->(), 'admitted', 'and the next is admitted');
    is(inode($apache), $inode, 'the segment is the same');
};

topic 'a holder dies while the guard is off' => sub {
    my $apache = start(config(1, 0));
    my $holder = gated($apache);
    is_figures($apache, 1, 0, 'one holds');
    my ($pid) = ($apache->ctl('status'))[1] =~ /^holds +\S+ +(\d+)/m;
    reload($apache, config(1, 0, 'Off'));
    kill KILL => $pid;
    wait_until(sub { !kill 0 => $pid }, 5, 'it to be reaped');
    reload($apache, config(1, 1));
    is($apache->get('/run.php')->{status}, 200,
        'whoever comes when it is on again gets the token');
    is_figures($apache, 0, 0, 'the end');
};

topic 'graceful-stop' => sub {
    my $apache = start(config(1, 4));
    my @both = map { my $one = gated($apache);
        is_figures($apache, 1, $_, 'one more'); $one } 0, 1;
    $apache->signal('WINCH');
    wait_until(sub {
        !IO::Socket::INET->new(PeerAddr => '127.0.0.1',
            PeerPort => $apache->port);
    }, 10, 'the port to be closed');
    ok(-e $apache->scoreboard, 'the segment is there while somebody runs');
    open_gate($apache, $both[0]);
    is_deeply([statuses($both[0])], [200], 'the holder is served');
    open_gate($apache, $both[1]);
    is_deeply([statuses($both[1])], [200], 'so is the one that waited');
    wait_until(sub { !$apache->running }, 10, 'the server to end');
    ok(!-e $apache->scoreboard, 'the segment is gone');
};

topic 'hard restarts under load' => sub {
    my $apache = start(config(4, 6));
    my $inode = inode($apache);
    my $before = belongings($apache);
    my $end = load($apache, '/run.php?ms=5', 10);

    for (1 .. 3) {
        my $admitted = $apache->status_auto->{DBGuardAdmittedTotal};
        wait_until(sub { $apache->status_auto->{DBGuardAdmittedTotal}
            > $admitted + 20 }, 10, 'the load to run');
        $apache->restart('hard');
    }
    wait_until(sub { (figures($apache))[1] > 0 }, 10, 'the load to wait');
    my %count = $end->();
    ok(!(grep { !/^(0|200|503)$/ } keys %count),
        'nothing but 200, 503 and broken connections') or diag explain \%count;
    is_figures($apache, 0, 0, 'the end');
    is(inode($apache), $inode, 'the segment is the same');
    is_deeply(belongings($apache), $before, 'nothing is left behind');
    my @all = map { gated($apache) } 1 .. 10;
    is_figures($apache, 4, 6, 'every token and every place can be used');
    open_gate($apache, @all);
    is_deeply([grep { $_ != 200 } statuses(@all)], [],
        '... and all are served');
    unlike($apache->error_log, qr/exit signal/, 'nothing crashed');
};

done_testing;
