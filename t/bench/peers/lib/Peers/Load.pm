# What arrives, and when: the schedules of the three scenarios and of the idle
# phase, as openloop reads them.
#
# Invariants:
#  - A schedule depends on nothing but scenario, length and number of clients.
#    Every row meets the same arrivals, and a calculation waits for its external
#    system for the same time in every row.
#  - Each stream draws from a seed of its own, so that one more in a scenario
#    leaves the others as they were.
#  - Every client has an address of its own in 127.0.0.0/8, and no cookie.
package Peers::Load;

use strict;
use warnings;
use Exporter qw(import);
use List::Util qw(min);

our @EXPORT_OK = qw(schedule window HERD_AT);

use constant {
    HERD_AT => 3, HERD_WITHIN => 0.3,   # seconds
    HOLD_MAX => 5400,                   # ms
};

# Searched for: of these, what arrives in 50 s is what is announced, before,
# during and after the trouble, within one percent. Near the limit of 20 (14 a
# second hold 19.3 connections on average) one draw is an overload and the next
# one none.
my %seed = (page => 1108, calc => 1677, static => 778, hold => 2449,
    herd => 15);

# When the trouble is, of a run of so many seconds.
sub window
{
    my ($seconds) = @_;
    return ($seconds / 5, $seconds * 3 / 5);
}

# The text of a schedule. arg: scenario (idle, A, B or C), seconds, clients and
# comes_back of the herd.
sub schedule
{
    my (%arg) = @_;
    my ($scenario, $seconds) = @arg{qw(scenario seconds)};
    my ($from, $to) = window($seconds);
    my @lines;

    if ($scenario eq 'idle') {
        @lines = (pages(40, $seconds), files(25, $seconds));
    } elsif ($scenario eq 'C') {
        # With five a second their p99 would be the slowest of 85.
        @lines = (pages(30, $seconds), files(25, $seconds),
            herd(@arg{qw(clients comes_back)}));
    } else {
        my $slow = $scenario eq 'B';
        @lines = (pages(40, $seconds), files(5, $seconds), calculations(14,
            $seconds, $slow, sub { $slow && $_[0] >= $from && $_[0] < $to }));
        push @lines, [$from, 'tab', sprintf('loop=%.0f', $to * 1e6),
            '/app/tab.php'] if $scenario eq 'A';
    }

    my $n = 0;
    return join '', map {
        my ($at, $kind, $comes_back, $path) = @$_;
        sprintf "%.0f %s %s %s %s\n", $at * 1e6, $kind, address($n++),
            $comes_back, $path;
    } sort { $a->[0] <=> $b->[0] } @lines;
}

sub address
{
    my ($n) = @_;
    return sprintf '127.%d.%d.%d', 16 + $n / 62500, $n / 250 % 250,
        1 + $n % 250;
}

# Poisson arrivals from 0 on.
sub arrivals
{
    my ($name, $rate, $seconds) = @_;
    my ($at, @times) = (0);

    srand $seed{$name};
    while (($at -= log(1 - rand) / $rate) < $seconds) {
        push @times, $at;
    }
    return @times;
}

sub pages
{
    return map { [$_, 'page', 'never', '/app/page.php'] } arrivals('page', @_);
}

sub files
{
    return map { [$_, 'static', 'never', '/static/style.css'] }
        arrivals('static', @_);
}

# Each waits for the external system for a log-normal time, three times as long
# for who comes while it is slow. Where they may, every second one that is told
# when to return does so.
sub calculations
{
    my ($rate, $seconds, $may_return, $is_slow) = @_;
    my @times = arrivals('calc', $rate, $seconds);
    my $n = 0;

    srand $seed{hold};
    return map {
        my $ms = min(HOLD_MAX, 1000 * ($is_slow->($_) ? 3 : 1)
            * exp(0.85 * normal()));
        [$_, 'calc', $may_return && $n++ % 2 ? 'told' : 'never',
            sprintf('/app/calc.php?ms=%.0f', $ms)];
    } @times;
}

sub normal { sqrt(-2 * log(1 - rand)) * cos(6.28318530717959 * rand) }

sub herd
{
    my ($clients, $comes_back) = @_;

    srand $seed{herd};
    return map { [HERD_AT + HERD_WITHIN * rand, 'herd', $comes_back,
        '/app/login.php'] } 1 .. $clients;
}

1;
