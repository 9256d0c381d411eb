# Clients that go away: while they wait their place is free in under half a
# second and nothing runs for them; while their page runs the token stays out
# until it has ended. Keep-alive and pipelining change nothing about that.
use strict;
use warnings;
use FindBin;
use lib "$FindBin::Bin/lib";
use IO::Socket::INET;
use Test::More;
use Time::HiRes qw(time sleep);
use DBGuard::Stack qw(wait_until slurp);
use DBGuard::Topic qw(topic ends_with_topic is_figures);

my %files = (
    # Runs until the test opens its gate, and leaves a note at each end.
    'gate.php' => <<'END',
<?php
$dir = dirname(__DIR__) . '/sessions';
$name = basename($_GET['gate']);
touch("$dir/began.$name");
register_shutdown_function(function () use ($dir, $name) {
    touch("$dir/ended.$name");
});
$end = hrtime(true) + 60e9;
while (!file_exists("$dir/gate.$name") && hrtime(true) < $end) {
    usleep(2000);
    clearstatcache();
}
echo 'ran ', $name;
END
    # Talks all the while, and so notices that nobody listens.
    'talk.php' => <<'END',
<?php
$end = hrtime(true) + 60e9;
while (hrtime(true) < $end) {
    echo str_repeat('.', 1000);
    flush();
    usleep(5000);
}
END
);

sub start
{
    my ($budget, $queue) = @_;
    my $stack = DBGuard::Stack->new(apache => {
        workers => 16, php => 1, files => \%files,
        config => "DBGuardEngine On\nDBGuardBudget $budget\n"
            . "DBGuardQueue length=$queue patience=60s\n"
            . "KeepAlive On\nKeepAliveTimeout 60\n",
        docroot_config => 'DBGuard On',
    });
    ends_with_topic($stack);
    return $stack->start->apache;
}

my $gates = 0;

# A request that runs until open_gate: [request, gate].
sub gated
{
    my ($apache, %arg) = @_;
    my $name = ++$gates;
    return [$apache->open_request('GET', "/gate.php?gate=$name", %arg), $name];
}

sub mark
{
    my ($apache, $what, $gated) = @_;
    return $apache->dir . "/sessions/$what.$gated->[1]";
}

sub began { -e mark($_[0], 'began', $_[1]) }
sub ended { -e mark($_[0], 'ended', $_[1]) }

sub open_gate
{
    my ($apache, @gated) = @_;
    DBGuard::Stack::spew(mark($apache, 'gate', $_), '') for @gated;
}

sub statuses { map { $_->[0]->response->{status} } @_ }

# How long it takes until so many wait.
sub seconds_until
{
    my ($apache, $waiting) = @_;
    my $begin = time;
    while ($apache->status_auto->{DBGuardWaiting} != $waiting) {
        return 10 if time > $begin + 10;
        sleep 0.02;
    }
    return time - $begin;
}

# The best of three, for the machine's sake: the code makes one attempt and
# returns how long it took.
sub is_quick
{
    my ($what, $attempt) = @_;
    my $best = 10;
    for (1 .. 3) {
        my $seconds = $attempt->();
        $best = $seconds if $seconds < $best;
        last if $best < 0.5;
    }
    cmp_ok($best, '<', 0.5, sprintf '%s: free after %.2f s', $what, $best);
}

topic 'a client hangs up while it waits' => sub {
    my $apache = start(1, 6);
    my $holder = gated($apache);
    is_figures($apache, 1, 0, 'one holds');
    my @gone;

    is_quick('one client', sub {
        my $waiter = gated($apache);
        is_figures($apache, 1, 1, 'one waits');
        push @gone, $waiter;
        $waiter->[0]->close;
        return seconds_until($apache, 0);
    });
    is_quick('five clients at once', sub {
        my @waiters = map { gated($apache) } 1 .. 5;
        my $stays = gated($apache);
        is_figures($apache, 1, 6, 'six wait');
        push @gone, @waiters, $stays;
        $_->[0]->close for @waiters;
        my $seconds = seconds_until($apache, 1);
        $stays->[0]->close;
        is_figures($apache, 1, 0, 'the last one goes, too');
        return $seconds;
    });
    is_quick('one that had its connection reset', sub {
        my $waiter = gated($apache);
        is_figures($apache, 1, 1, 'one waits');
        push @gone, $waiter;
        setsockopt $waiter->[0]->socket, SOL_SOCKET, SO_LINGER, pack 'ii', 1, 0;
        $waiter->[0]->close;
        return seconds_until($apache, 0);
    });

    my $status = $apache->status_auto;
    is($status->{DBGuardAbortedTotal}, @gone, 'all are counted as aborted');
    is($status->{DBGuardRefusedTotal}, 0, '... and not as refused');
    is($status->{DBGuardAdmittedTotal}, 1, '... nor as admitted');

    # Whose place is free can be had, and the line goes on behind it.
    my $first = gated($apache);
    is_figures($apache, 1, 1, 'one waits');
    my $second = gated($apache);
    is_figures($apache, 1, 2, 'another one behind it');
    $first->[0]->close;
    is_figures($apache, 1, 1, 'the first one hangs up');
    open_gate($apache, $holder, $second, $first, @gone);
    is_deeply([statuses($holder, $second)], [200, 200], 'the second is served');
    is_figures($apache, 0, 0, 'the end');
    is_deeply([grep { began($apache, $_) } @gone, $first], [],
        'PHP never ran for those who went');
    my @lines = grep { $_->{verdict} eq 'refused(aborted)' }
        $apache->access_entries;
    is(scalar @lines, @gone + 1, 'the access log names them');
};

topic 'a client hangs up while its page runs' => sub {
    my $apache = start(1, 4);
    my $runs = gated($apache);
    wait_until(sub { began($apache, $runs) }, 10, 'the page to run');
    my $next = gated($apache);
    is_figures($apache, 1, 1, 'one runs, one waits');
    $runs->[0]->close;

    # The one that waits looks every quarter of a second whether anything has
    # changed. When another one has come and gone, it has looked.
    my $other = gated($apache);
    is_figures($apache, 1, 2, 'another one comes');
    $other->[0]->close;
    is_figures($apache, 1, 1, '... and goes');
    ok(!began($apache, $next), 'the token stays out while the page runs');
    ok(!ended($apache, $runs), '... which it does');
    open_gate($apache, $runs);
    wait_until(sub { began($apache, $next) }, 10, 'the next one to run');
    ok(ended($apache, $runs), 'when it has ended the next one runs');
    open_gate($apache, $next);
    is_deeply([statuses($next)], [200], '... and is served');
    is_figures($apache, 0, 0, 'the end');
    is($apache->status_auto->{DBGuardAbortedTotal}, 1, 'one was aborted');

    my $talks = $apache->get_async('/talk.php');
    is_figures($apache, 1, 0, 'a page that talks all the while');
    $talks->close;
    is_figures($apache, 0, 0, 'PHP ends it, and the token is back');
};

topic 'a client closes its sending side only' => sub {
    my $apache = start(1, 4);
    my $early = gated($apache);
    shutdown $early->[0]->socket, 1;
    is_figures($apache, 1, 0, 'with a token at hand it runs');
    is_quick('while it waits', sub {
        my $waiter = gated($apache);
        is_figures($apache, 1, 1, 'one waits');
        shutdown $waiter->[0]->socket, 1;
        my $seconds = seconds_until($apache, 0);
        is($waiter->[0]->response->{status}, 503, 'it is told');
        ok(!began($apache, $waiter), '... and nothing ran');
        return $seconds;
    });
    open_gate($apache, $early);
    is_deeply([statuses($early)], [200], 'the early one gets its page');
    is_figures($apache, 0, 0, 'the end');
};

topic 'connections that stay open' => sub {
    my $apache = start(1, 2);
    my ($one, $two) = map {
        my $gated = gated($apache, keepalive => 1);
        open_gate($apache, $gated);
        is_deeply([statuses($gated)], [200], 'a page on a connection');
        $gated->[0]->socket;
    } 1, 2;
    is_figures($apache, 0, 0, 'two idle connections hold nothing');

    my $holder = gated($apache, socket => $one, keepalive => 1);
    is_figures($apache, 1, 0, 'one of them asks again');
    my $waiter = gated($apache, socket => $two, keepalive => 1);
    is_figures($apache, 1, 1, 'the other one, too, and waits');
    my $third = gated($apache, keepalive => 1);
    is_figures($apache, 1, 2, 'a third');
    my $refused = gated($apache, keepalive => 1);
    is_deeply([statuses($refused)], [503], 'a fourth is refused');
    # httpd does so after every 503, and frees the worker.
    is($refused->[0]->response->{headers}{connection}, 'close',
        '... and told that the connection ends');
    is(sysread($refused->[0]->socket, my $more, 1), 0, '... as it does');

    is_quick('one that waits hangs up', sub {
        return 0 if $waiter->[0]{gone}++;
        $waiter->[0]->close;
        return seconds_until($apache, 1);
    });
    open_gate($apache, $holder, $third);
    is_deeply([statuses($holder, $third)], [200, 200], 'the others are served');
    ok(!began($apache, $waiter), 'the one that hung up never ran');
    my $again = $apache->open_request('GET', '/static.txt', socket => $one);
    is($again->response->{status}, 200, 'the first connection goes on');
    is_figures($apache, 0, 0, 'the end');
};

# Two requests, written at once.
sub pipelined
{
    my ($apache) = @_;
    my @names = map { $gates + $_ } 1, 2;
    $gates += 2;
    my $socket = IO::Socket::INET->new(PeerAddr => '127.0.0.1',
        PeerPort => $apache->port) or die "connect: $!";
    syswrite $socket, join '', map {
        "GET /gate.php?gate=$_ HTTP/1.1\r\nHost: x\r\n\r\n" } @names;
    return ($socket, map { [undef, $_] } @names);
}

topic 'pipelined requests' => sub {
    my $apache = start(1, 4);
    my ($socket, @two) = pipelined($apache);
    is_figures($apache, 1, 0, 'the first of two holds, the second is not read');
    wait_until(sub { began($apache, $two[0]) }, 10, 'the first to run');
    ok(!began($apache, $two[1]), 'one after the other');
    open_gate($apache, $two[0]);
    wait_until(sub { began($apache, $two[1]) }, 10, 'the second to run');
    is_figures($apache, 1, 0, 'then the second holds');
    open_gate($apache, $two[1]);
    my $text = '';
    wait_until(sub { sysread $socket, $text, 4096, length $text;
        $text =~ /ran $two[1][1]/ }, 10, 'the second answer');
    like($text, qr/200 OK.*ran $two[0][1].*200 OK.*ran $two[1][1]/s, 'both');
    close $socket;

    my $holder = gated($apache);
    is_figures($apache, 1, 0, 'one holds');
    my @gone;
    is_quick('a client with two hangs up', sub {
        ($socket, my @pair) = pipelined($apache);
        push @gone, @pair;
        is_figures($apache, 1, 1, 'the first of two waits');
        close $socket;
        return seconds_until($apache, 0);
    });
    # Before this one has its token, the second of the two had its turn.
    my $last = gated($apache);
    is_figures($apache, 1, 1, 'another client waits');
    wait_until(sub {
        my $busy = () = $apache->status_auto->{Scoreboard} =~ /W/g;
        $busy == 3;
    }, 10, 'none but the two and this very request to be under way');
    open_gate($apache, $holder, $last, @gone);
    is_deeply([statuses($holder, $last)], [200, 200], 'the others are served');
    is_figures($apache, 0, 0, 'the end');
    is_deeply([grep { began($apache, $_) } @gone], [],
        'nothing ran for the client that went');
};

done_testing;
