# The limit: there are never more requests running than the budget, counted by
# PHP itself and by MariaDB; refusals never cost a token; and whatever needs no
# token is answered while every token and every waiting place is taken.
use strict;
use warnings;
use FindBin;
use lib "$FindBin::Bin/lib";
use Test::More;
use Time::HiRes qw(time);
use DBGuard::Stack qw(wait_until slurp);
use DBGuard::Topic qw(topic ends_with_topic);

# Notes from when to when it ran, so that the test can count the overlaps.
my $span = <<'END';
<?php
$begin = hrtime(true);
register_shutdown_function(function () use ($begin) {
    file_put_contents(dirname(__DIR__) . '/sessions/spans',
        $begin . ' ' . hrtime(true) . "\n", FILE_APPEND | LOCK_EX);
});
END

my %files = (
    'run.php' => $span . <<'END',
usleep(1000 * ($_GET['ms'] ?? 0));
echo 'ran';
END
    # Uses a connection, and goes on for ?ms= milliseconds after closing it.
    # mariadbd counts a connection until the session's thread has had its turn.
    'query.php' => $span . <<'END',
require 'db.php';
try {
    $db = db();
    $db->query('SELECT SLEEP(0.01)');
    $db->close();
    usleep(1000 * ($_GET['ms'] ?? 0));
    echo 'ran';
} catch (mysqli_sql_exception $e) {
    http_response_code(500);
    echo 'database error ', $e->getCode();
}
END
    # Runs until the test opens its gate.
    'gate.php' => $span . <<'END',
$gate = dirname(__DIR__) . '/sessions/gate.' . basename($_GET['gate']);
while (!file_exists($gate) && hrtime(true) - $begin < 30e9) {
    usleep(5000);
    clearstatcache();
}
echo 'ran';
END
);

sub start
{
    my (%arg) = @_;
    my $stack = DBGuard::Stack->new(%arg);
    ends_with_topic($stack);
    $stack->start;
    return $stack->apache;
}

sub open_gate
{
    my ($apache, $name) = @_;
    DBGuard::Stack::spew($apache->dir . "/sessions/gate.$name", '');
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

# So many clients, each of which asks again as soon as it has an answer, until
# the code says stop. Returns how often each status came.
sub load
{
    my ($apache, $path, $clients, $stop) = @_;
    my %count;
    my @open = map { $apache->get_async($path) } 1 .. $clients;
    my $ending = 0;

    while (@open) {
        $ending ||= $stop->(\%count);
        my $one = shift @open;
        if ($one->ready) {
            $count{ $one->response->{status} }++;
            next if $ending;
            $one = $apache->get_async($path);
        }
        push @open, $one;
        select undef, undef, undef, 0.0005;
    }
    return %count;
}

sub for_seconds
{
    my $end = time + $_[0];
    return sub { time > $end };
}

sub wait_idle
{
    my ($apache) = @_;
    wait_until(sub {
        my $s = $apache->status_auto;
        $s->{DBGuardHeld} == 0 && $s->{DBGuardWaiting} == 0;
    }, 10, 'all tokens to be back');
}

sub wait_figures
{
    my ($apache, $held, $waiting) = @_;
    my $s;
    wait_until(sub {
        $s = $apache->status_auto;
        $s->{DBGuardHeld} == $held && $s->{DBGuardWaiting} == $waiting;
    }, 10, sub { "held $held, waiting $waiting; it is $s->{DBGuardHeld}, "
        . $s->{DBGuardWaiting} });
    pass("$held hold, $waiting wait");
}

topic 'a database of 12 connections, 20 workers, a budget of 9' => sub {
    my $apache = start(
        db => { max_connections => 12 },
        apache => {
            workers => 20, php => 1, files => \%files,
            config => "DBGuardEngine On\nDBGuardBudget 9\n"
                . "DBGuardQueue length=4 patience=2s\n",
            docroot_config => 'DBGuard On',
        });
    my %count = load($apache, '/query.php?ms=30', 19, for_seconds(2));
    my ($most, $ran) = overlap($apache);
    my $used = $apache->{db}->status('Max_used_connections');
    diag "$ran ran, $most at once; Max_used_connections $used; ",
        join ', ', map { "$count{$_} x $_" } sort keys %count;

    is_deeply([grep { !/^(200|503)$/ } keys %count], [],
        'every answer is 200 or 503');
    is($count{200}, $ran, 'every 200 ran');
    cmp_ok($most, '<=', 9, 'as PHP counts, never more than the budget');
    cmp_ok($most, '>=', 8, '... and hardly less: the load was enough');
    cmp_ok($used, '<=', 9, 'as MariaDB counts');
    is($apache->{db}->status('Connection_errors_max_connections'), 0,
        'nobody was turned away by the database');

    wait_idle($apache);
    my $status = $apache->status_auto;
    is($status->{DBGuardHeldPeak}, 9, 'peak');
    is($status->{DBGuardAdmittedTotal}, $count{200}, 'admitted: the 200s');
    is($status->{DBGuardRefusedTotal}, $count{503} // 0,
        'refused: the 503s');
    is($status->{DBGuardReleasedTotal}, $count{200}, 'all came back');
    is($status->{DBGuardRepairsTotal}, 0, 'nothing had to be repaired');

    # Pages as they are, that end when they have closed it. The next one must
    # not come before mariadbd has noticed.
    $apache->set(config => "DBGuardEngine On\n"
        . "DBGuardQueue length=4 patience=2s\n");
    $apache->restart('graceful');
    %count = load($apache, '/query.php', 19, for_seconds(1.5));
    diag join ', ', map { "$count{$_} x $_" } sort keys %count;
    is_deeply([grep { !/^(200|503)$/ } keys %count], [],
        'every answer is 200 or 503');
    is($apache->{db}->status('Connection_errors_max_connections'), 0,
        'with the default budget nobody is turned away by the database');
};

topic 'a storm of refusals takes no token' => sub {
    my $apache = start(apache => {
        workers => 16, php => 1, files => \%files,
        config => "DBGuardEngine On\nDBGuardBudget 2\nDBGuardQueue length=0\n",
        docroot_config => 'DBGuard On',
    });
    my $figure = sub { $apache->status_auto->{"DBGuard$_[0]"} };

    my @holders = map { $apache->get_async("/gate.php?gate=$_") } 1, 2;
    wait_figures($apache, 2, 0);
    my %count = load($apache, '/run.php', 8,
        sub { ($_[0]{503} // 0) >= 1000 });
    is_deeply([keys %count], [503], 'all refused while the budget is full');
    is($figure->('RefusedTotal'), $count{503}, 'all counted');

    # One token is free from here on, and one client asks for it.
    open_gate($apache, 1);
    is($holders[0]->response->{status}, 200, 'one holder ends');
    is_deeply([grep { $_ != 200 } map { $apache->get('/run.php')->{status} }
        1 .. 100], [], 'the one free token is there for every next request');
    open_gate($apache, 2);
    is($holders[1]->response->{status}, 200, 'the other holder ends');
    my %pair = load($apache, '/run.php?ms=1', 2,
        sub { ($_[0]{200} // 0) >= 200 });
    is_deeply([keys %pair], [200], 'two clients are never refused two tokens');
    is($figure->('RefusedTotal'), $count{503}, 'no further refusal');

    # Tokens come and go all the while. At the end both are there.
    my %mixed = load($apache, '/run.php?ms=2', 10, for_seconds(1));
    is_deeply([sort keys %mixed], [200, 503], 'served and refused');
    wait_idle($apache);
    is_deeply([grep { $_ != 200 } map { $apache->get('/run.php')->{status} }
        1 .. 50], [], 'then everybody is admitted');
    is($figure->('RefusedTotal'), $count{503} + $mixed{503}, 'the sum');
    my ($most, $ran) = overlap($apache);
    is($figure->('AdmittedTotal'), $ran, 'what was admitted ran, no more');
    is($most, 2, 'never more than two at once');
};

topic 'waiting, in a storm, is waiting for a token' => sub {
    my $apache = start(apache => {
        workers => 20, php => 1, files => \%files,
        config => "DBGuardEngine On\nDBGuardBudget 3\n"
            . "DBGuardQueue length=4 patience=60s\n",
        docroot_config => 'DBGuard On',
    });
    # Of what is not known yet, newcomers take places once it is.
    is($apache->get('/run.php?ms=3')->{status}, 200, 'the page is known');
    my %count = load($apache, '/run.php?ms=3', 12, for_seconds(1.5));
    my ($most, $ran) = overlap($apache);
    wait_idle($apache);
    my $status = $apache->status_auto;

    is_deeply([grep { !/^(200|503)$/ } keys %count], [],
        'nothing but 200 and 503');
    is($most, 3, 'never more than the budget');
    is($status->{DBGuardRefusedTotal}, $status->{DBGuardRefusedBudgetTotal},
        'nobody who waited was refused');
    cmp_ok($status->{DBGuardWaitedTotal}, '>', 0, 'some waited');
    my @waits = map { $_->{wait} }
        grep { $_->{verdict} eq 'waited' } $apache->access_entries;
    my @late = grep { $_ > 240_000 } @waits;
    cmp_ok(@late, '<', @waits / 20,
        'a token goes straight to who waits, not at its next look');

    # The control: what counts the overlaps sees them when nobody guards.
    $apache->set(config => "DBGuardEngine Off\n");
    $apache->restart('hard');
    load($apache, '/run.php?ms=20', 12, for_seconds(0.3));
    cmp_ok((overlap($apache))[0], '>', 3, 'without the guard more run at once');
};

topic 'waiting in vain takes no token and no place' => sub {
    my $apache = start(apache => {
        workers => 16, php => 1, files => \%files,
        config => "DBGuardEngine On\nDBGuardBudget 1\n"
            . "DBGuardQueue length=8 patience=100ms\n",
        docroot_config => 'DBGuard On',
    });
    # Known to be short: it is worth waiting even behind seven others.
    is_deeply([grep { $_ != 200 } map { $apache->get('/run.php')->{status} }
        1 .. 20], [], 'a short page');
    my $holder = $apache->get_async('/gate.php?gate=a');
    wait_figures($apache, 1, 0);
    # Several times as many as there are slots.
    my %count = load($apache, '/run.php', 8,
        sub { ($_[0]{503} // 0) >= 150 });
    is_deeply([keys %count], [503], 'all refused while the token is out');
    open_gate($apache, 'a');
    is($holder->response->{status}, 200, 'it comes back');
    wait_idle($apache);
    my $status = $apache->status_auto;
    is($status->{DBGuardRefusedTimeoutTotal}
            + $status->{DBGuardRefusedPatienceTotal}, $count{503},
        'their patience ended, or would have ended first');
    cmp_ok($status->{DBGuardRefusedTimeoutTotal}, '>',
        2 * $status->{DBGuardSlots}, 'nearly all waited for that');
    is($status->{DBGuardRefusedBoardTotal}, 0, 'no slot is lost');
    is_deeply([grep { $_ != 200 } map { $apache->get('/run.php')->{status} }
        1 .. 20], [], 'then everybody is admitted');
};

topic 'files and status while everything is taken' => sub {
    my $apache = start(apache => {
        workers => 20, php => 1, files => \%files,
        config => "DBGuardEngine On\nDBGuardBudget 2\n"
            . "DBGuardQueue patience=60s\n",
        docroot_config => 'DBGuard On',
    });
    my @holders = map { $apache->get_async('/gate.php?gate=a') } 1, 2;
    wait_figures($apache, 2, 0);
    my @waiters = map { $apache->get_async('/run.php') } 1 .. 10;
    wait_figures($apache, 2, 10);

    is($apache->get('/run.php')->{status}, 503, 'full: the next is refused');
    my @files = map { $apache->get_async('/static.txt') } 1 .. 50;
    my @pages = map { $apache->get_async('/server-status') } 1 .. 10;
    is_deeply([grep { $_ != 200 } map { $_->response(5)->{status} }
        @files, @pages], [], 'files and status pages are served');
    is(($apache->ctl('status'))[0], 0, 'dbguardctl answers');
    is($apache->status_auto->{DBGuardWaiting}, 10, 'still full');

    open_gate($apache, 'a');
    is_deeply([grep { $_ != 200 } map { $_->response->{status} }
        @holders, @waiters], [], 'then all are served');
    wait_idle($apache);
    is((overlap($apache))[0], 2, 'never more than two at once');
};

done_testing;
