# Workers die in every state that a request can be in, by every signal that
# matters: what they had is back within two seconds, each time, and nobody
# else loses anything.
use strict;
use warnings;
use FindBin;
use lib "$FindBin::Bin/lib";
use Test::More;
use Time::HiRes qw(time);
use DBGuard::Stack qw(wait_until slurp builddir);
use DBGuard::Topic qw(topic ends_with_topic is_figures);

# Runs until the test opens its gate, and says which process it is.
my $gate_php = <<'END';
<?php
$dir = dirname(__DIR__) . '/sessions';
$name = basename($_GET['gate']);
file_put_contents("$dir/runs.$name", getmypid());
$end = hrtime(true) + 60e9;
while (!file_exists("$dir/gate.$name") && hrtime(true) < $end) {
    usleep(5000);
    clearstatcache();
}
echo 'ran';
END

sub config
{
    my ($budget, $queue, $patience) = @_;
    return "DBGuardEngine On\nDBGuardBudget $budget\n"
        . "DBGuardQueue length=$queue patience=$patience\n";
}

sub start
{
    my ($budget, $queue, $workers, $patience) = @_;
    my $stack = DBGuard::Stack->new(apache => {
        workers => $workers, php => 1, files => { 'gate.php' => $gate_php },
        config => config($budget, $queue, $patience // '60s'),
        docroot_config => 'DBGuard On',
    });
    ends_with_topic($stack);
    return $stack->start->apache;
}

my $gates = 0;

# A request that runs until open_gate, and the name of its gate.
sub gated
{
    my ($apache) = @_;
    my $name = ++$gates;
    my $request = $apache->get_async("/gate.php?gate=$name");
    return ($request, $name);
}

sub pid_of
{
    my ($apache, $name) = @_;
    return wait_until(sub {
        DBGuard::Stack::slurp($apache->dir . "/sessions/runs.$name");
    }, 10, "the page behind gate $name to run");
}

sub runs
{
    my ($apache, $name) = @_;
    return -s $apache->dir . "/sessions/runs.$name";
}

sub open_gate
{
    my ($apache, @names) = @_;
    DBGuard::Stack::spew($apache->dir . "/sessions/gate.$_", '') for @names;
}

# A request that holds: itself, its gate, its process.
sub holder
{
    my ($apache) = @_;
    my ($request, $name) = gated($apache);
    return ($request, $name, pid_of($apache, $name));
}

# The processes that dbguardctl says hold or wait.
sub pids
{
    my ($apache, $state) = @_;
    my ($code, $text) = $apache->ctl('status');
    return $text =~ /^$state +\S+ +(\d+)/mg;
}

# Kills, and says how long it took until the figures were these.
sub kill_and_wait
{
    my ($apache, $signal, $pids, $held, $waiting) = @_;
    my $begin = time;
    my $s;

    kill $signal => @$pids;
    wait_until(sub {
        $s = $apache->status_auto;
        $s->{DBGuardHeld} == $held && $s->{DBGuardWaiting} == $waiting;
    }, 10, sub { "$held held, $waiting waiting after SIG$signal; it is "
        . "$s->{DBGuardHeld}, $s->{DBGuardWaiting}" });
    return time - $begin;
}

# Is the whole of the table usable? Every token and place is taken at once.
sub is_whole
{
    my ($apache, $budget, $queue) = @_;
    my @all = map { [gated($apache)] } 1 .. $budget + $queue;
    is_figures($apache, $budget, $queue, 'the whole table can be used');
    open_gate($apache, map { $_->[1] } @all);
    is_deeply([grep { $_ != 200 } map { $_->[0]->response->{status} } @all],
        [], '... and all are served');
    is_figures($apache, 0, 0, 'the end');
    is($apache->status_auto->{DBGuardRefusedBoardTotal}, 0, 'no slot is lost');
}

topic 'kill -9 of a hundred that hold' => sub {
    my $apache = start(20, 0, 112);
    my $slowest = 0;

    for my $round (1 .. 5) {
        my @holders = map { [gated($apache)] } 1 .. 20;
        my @pids = map { pid_of($apache, $_->[1]) } @holders;
        my $took = kill_and_wait($apache, KILL => \@pids, 0, 0);
        $slowest = $took if $took > $slowest;
        is_deeply([grep { $_ != 0 }
            map { $_->[0]->response->{status} } @holders], [],
            "round $round: all twenty were killed");
    }
    cmp_ok($slowest, '<', 2, 'each token is back within two seconds');
    diag sprintf 'a hundred kills, at most %.2f s each', $slowest;

    my $status = $apache->status_auto;
    is($status->{DBGuardAdmittedTotal}, 100, 'a hundred were admitted');
    is($status->{DBGuardReapedTotal}, 100, '... and taken back');
    is($status->{DBGuardReleasedTotal}, 0, '... once');
    my $taken = 0;
    $taken += $_ for $apache->error_log
        =~ /DBGUARD0024: process \d+ ended in the middle of (\d+)/g;
    is($taken, 100, 'the log names them');
    is($status->{DBGuardHeld}, 0, 'the count is zero');
};

topic 'kill -9 of ten that wait' => sub {
    my $apache = start(2, 12, 40);
    my @holders = map { [holder($apache)] } 1, 2;
    my @waiters = map { [gated($apache)] } 1 .. 12;
    is_figures($apache, 2, 12, 'two hold, twelve wait');

    my @pids = pids($apache, 'waits');
    is(scalar @pids, 12, 'dbguardctl knows the processes');
    my $took = kill_and_wait($apache, KILL => [@pids[0 .. 9]], 2, 2);
    cmp_ok($took, '<', 2, 'the places are free within two seconds');
    is($apache->status_auto->{DBGuardReapedTotal}, 10, 'ten were taken back');
    ok(!(grep { !kill 0 => $_->[2] } @holders), 'the holders live');

    open_gate($apache, map { $_->[1] } @holders, @waiters);
    is_deeply([map { $_->[0]->response->{status} } @holders], [200, 200],
        '... and are served');
    my @served = grep { $_ } map { $_->[0]->response->{status} } @waiters;
    is_deeply(\@served, [200, 200], 'so are the two that went on waiting');
    is_whole($apache, 2, 12);
};

topic 'kill -9 of one that has just been handed a token' => sub {
    my $apache = start(1, 4, 24);

    for my $next (0, 1) {
        my ($holder, $gate) = holder($apache);
        my ($waiter, $name) = gated($apache);
        is_figures($apache, 1, 1, 'one holds, one waits');
        my ($pid) = pids($apache, 'waits');
        # Stopped, it cannot take what it is given.
        kill STOP => $pid;
        my ($behind, $behind_gate) = $next ? gated($apache) : ();
        is_figures($apache, 1, 1 + $next, 'the first of them is stopped');

        open_gate($apache, $gate);
        is($holder->response->{status}, 200, 'the holder ends');
        is_figures($apache, 1, $next, 'its token is handed over');
        is_deeply([pids($apache, 'holds')], [$pid], '... to the stopped one');
        ok(!runs($apache, $name), '... which has not run');

        cmp_ok(kill_and_wait($apache, KILL => [$pid], $next, 0), '<', 2,
            'killed: its token is back within two seconds');
        is($waiter->response->{status}, 0, 'it never answered');
        ok(!runs($apache, $name), '... and never ran');
        if ($behind) {
            ok(pid_of($apache, $behind_gate), 'the next in line runs');
            open_gate($apache, $behind_gate);
            is($behind->response->{status}, 200, '... and is served');
        }
        is_figures($apache, 0, 0, 'the end');
    }
    is_whole($apache, 1, 4);
};

# A parent that is stopped, or a first process of a container that reaps nobody.
topic 'kill -9 of one that nobody reaps' => sub {
    my $apache = start(1, 4, 24);
    my ($holder, $gate, $pid) = holder($apache);
    my ($waiter, $name) = gated($apache);
    is_figures($apache, 1, 1, 'one holds, one waits');

    my $begin = time;
    kill STOP => $apache->parent;
    kill KILL => $pid;
    my $second = eval { pid_of($apache, $name) };
    cmp_ok(time - $begin, '<', 3, 'the next in line has its token soon');
    is((DBGuard::Process::stat_of($pid))[0], 'Z', '... of a zombie');
    ok($second, '... and runs');
    kill CONT => $apache->parent;
    is($holder->response->{status}, 0, 'the other one never answered');
    open_gate($apache, $name);
    is($waiter->response->{status}, 200, 'it is served');
    is_figures($apache, 0, 0, 'the end');
    is($apache->status_auto->{DBGuardReapedTotal}, 1, 'one was taken back');
    is_whole($apache, 1, 4);
};

topic 'kill -9 of one that was turned away and does not know yet' => sub {
    my $apache = start(1, 4, 24, '1s');

    for my $signal (qw(CONT KILL)) {
        my ($holder, $gate) = holder($apache);
        my ($waiter, $name) = gated($apache);
        is_figures($apache, 1, 1, 'one holds, one waits');
        my ($pid) = pids($apache, 'waits');
        kill STOP => $pid;
        my $refused = $apache->status_auto->{DBGuardRefusedTimeoutTotal};
        wait_until(sub {
            my ($code, $text) = $apache->ctl('status');
            $text =~ /^waits +(\S+)/m && $1 > 1.05;
        }, 10, 'its patience to end');
        open_gate($apache, $gate);
        is($holder->response->{status}, 200, 'the holder ends');
        is_figures($apache, 0, 0, 'nobody is given a token too late');
        is($apache->status_auto->{DBGuardRefusedTimeoutTotal}, $refused + 1,
            'it counts as refused');
        kill $signal => $pid;
        is($waiter->response->{status}, $signal eq 'CONT' ? 503 : 0,
            "SIG$signal: its client's answer");
        ok(!runs($apache, $name), 'it never ran');
    }
    wait_until(sub { $apache->status_auto->{DBGuardReapedTotal} == 1 }, 2,
        'its slot to be taken back');
    $apache->set(config => config(1, 4, '60s'));
    $apache->restart('graceful');
    is_whole($apache, 1, 4);
};

# prefork runs the pools' cleanups inside its handler of SIGTERM; SIGSEGV and
# SIGKILL leave everything to the parent.
topic "SIG$_" => sub {
    my $signal = $_;
    my $apache = start(2, 8, 24);
    my @first = holder($apache);
    my @second = holder($apache);
    my @waiters = map { [gated($apache)] } 1 .. 4;
    is_figures($apache, 2, 4, 'two hold, four wait');

    my @waiting = pids($apache, 'waits');
    cmp_ok(kill_and_wait($apache, $signal => [@waiting[0, 1]], 2, 2), '<', 2,
        'two that wait: their places are free within two seconds');
    cmp_ok(kill_and_wait($apache, $signal => [$first[2]], 2, 1), '<', 2,
        'one that holds: its token goes to the next in line');
    is($first[0]->response->{status}, 0, 'it never answered');

    open_gate($apache, map { $_->[1] } \@second, @waiters);
    is($second[0]->response->{status}, 200, 'the other holder is served');
    my @served = grep { $_ } map { $_->[0]->response->{status} } @waiters;
    is_deeply(\@served, [200, 200], 'so are the two that went on waiting');
    is_whole($apache, 2, 8);

    my $status = $apache->status_auto;
    is($status->{DBGuardRepairsTotal}, 0, 'nothing had to be repaired');
    my @crashes = $apache->error_log =~ /exit signal (.+?) \(/g;
    is_deeply(\@crashes, $signal eq 'SEGV' ? [('Segmentation fault') x 3] : [],
        'nobody crashed but by our hand');
} for qw(TERM SEGV);

# ---- one that has the lock of the scoreboard and is stopped

# A process that has it, and stands still.
sub lock_and_stop
{
    my ($apache, @torn) = @_;
    my $output = $apache->dir . '/log/lockholder.log';
    DBGuard::Stack::spew($output, '');
    my $process = DBGuard::Process->spawn(output => $output,
        command => [builddir() . '/t/lockholder', $apache->scoreboard, @torn]);
    wait_until(sub {
        slurp($output) =~ /^locked$/m
            && (DBGuard::Process::stat_of($process->pid))[0] eq 'T';
    }, 10, sub { 'the lock to be had: ' . slurp($output) });
    return $process;
}

# What it does meanwhile to those who come.
sub is_locked
{
    my ($apache) = @_;
    my $refused = $apache->get('/gate.php?gate=none');
    is($refused->{status}, 503, 'a guarded request is refused');
    cmp_ok($refused->{seconds}, '>', 0.9, '... after a second');
    cmp_ok($refused->{seconds}, '<', 10, '... not for ever');
    wait_until(sub {
        grep { $_->{verdict} eq 'refused(board)' } $apache->access_entries;
    }, 10, 'refused(board) in the access log');
    my $file = $apache->get('/static.txt');
    is($file->{status}, 200, 'a file is served');
    cmp_ok($file->{seconds}, '<', 0.9, '... at once');
    is($apache->status_auto->{DBGuardBudget}, 1, 'server-status is there');
    is(($apache->ctl('status'))[0], 0, '... and dbguardctl');
}

topic "one is stopped while it has the lock, then SIG$_" => sub {
    my $signal = $_;
    my $apache = start(1, 4, 24);
    my ($holder, $gate) = holder($apache);
    my ($waiter, $name) = gated($apache);
    is_figures($apache, 1, 1, 'one holds, one waits');

    my $locker = lock_and_stop($apache, $signal eq 'KILL' ? 'torn' : ());
    is_locked($apache);
    my $begin = time;
    $apache->set(config => config(2, 4, '60s'));
    $apache->restart('graceful');
    cmp_ok(time - $begin, '<', 20, 'a graceful restart does not hang');
    $apache->wait_log(qr/DBGUARD0028: /);
    is($apache->status_auto->{DBGuardBudget}, 1, 'the limits are the old ones');
    is($apache->get('/gate.php?gate=none')->{status}, 503,
        'new workers refuse as well');
    # Its token cannot be given back yet.
    open_gate($apache, $gate);
    is($holder->response->{status}, 200, 'who runs is served');
    ok(!runs($apache, $name), 'who waits, waits');

    $locker->signal($signal);
    ok(pid_of($apache, $name), 'the lock is free: the next one runs');
    $locker->stop('KILL', 10);
    open_gate($apache, $name);
    is($waiter->response->{status}, 200, '... and is served');
    is_figures($apache, 0, 0, 'no token is lost');
    is($apache->status_auto->{DBGuardRepairsTotal}, $signal eq 'KILL' ? 1 : 0,
        'repaired if the lock was left in the middle of a change');
    $apache->restart('graceful');
    is($apache->status_auto->{DBGuardBudget}, 2, 'a reload sets the limits');
    is_whole($apache, 2, 4);
} for qw(CONT KILL);

topic 'one is stopped with the lock for longer than a token can wait' => sub {
    my $apache = start(1, 4, 24);
    my ($holder, $gate, $pid) = holder($apache);
    my ($waiter, $name) = gated($apache);
    is_figures($apache, 1, 1, 'one holds, one waits');

    my $locker = lock_and_stop($apache);
    open_gate($apache, $gate);
    is($holder->response->{status}, 200, 'the holder ends');
    $apache->wait_log(qr/DBGUARD0029: .* when process $pid has ended/, 20);
    $locker->stop('KILL', 10);
    is_figures($apache, 1, 1, 'its token is still out');
    kill KILL => $pid;
    ok(pid_of($apache, $name), 'when its process has ended the next one runs');
    open_gate($apache, $name);
    is($waiter->response->{status}, 200, '... and is served');
    is_figures($apache, 0, 0, 'no token is lost');
    is_whole($apache, 1, 4);
};

done_testing;
