# From openloop's log to figures. Times are in ms but for the herd's, which is
# in seconds.
#
# A request is ok when it was answered 200 and in full, within the client's
# patience. Everything else is bad: refused, an error, no answer. Returns are
# counted apart: ok and bad are of first attempts.
package Peers::Figures;

use strict;
use warnings;
use List::Util qw(max);
use Peers::Load qw(window HERD_AT);

# log: text; scheduled: { kind => clients }; scenario, seconds.
sub figures
{
    my (%arg) = @_;
    my (%lines, @late);

    for (split /\n/, $arg{log}) {
        my %line;
        @line{qw(client kind attempt at status took error told late)} = split;
        push @{ $lines{ $line{kind} } }, \%line;
        push @late, $line{late} / 1000;
    }
    my $since = $arg{scenario} eq 'C' ? HERD_AT * 1e6 : 0;
    my %figures = map {
        my @these = grep { $_->{at} >= $since } @{ $lines{$_} // [] };
        $_ => { kind(@these) };
    } keys %{ $arg{scheduled} };

    $figures{errors_1040} = grep { $_->{error} == 1040 } map { @$_ }
        values %lines;
    @late = sort { $a <=> $b } @late;
    $figures{late} = { p99 => at(0.99, @late), max => $late[-1] };
    $figures{tab} = { tab($arg{seconds}, @{ $lines{tab} // [] }) }
        if $arg{scenario} eq 'A';
    $figures{returns} = { returns(@{ $lines{calc} // [] }) }
        if $arg{scenario} eq 'B';
    $figures{herd} = { %{ $figures{herd} }, herd($arg{scheduled}{herd},
        @{ $lines{herd} // [] }) } if $arg{scenario} eq 'C';
    return \%figures;
}

sub at
{
    my ($part, @sorted) = @_;
    return $sorted[@sorted * $part];
}

# Of first attempts.
sub kind { return answers(grep { $_->{attempt} == 1 } @_) }

sub answers
{
    my @ok = grep { $_->{status} == 200 } @_;
    my @times = sort { $a <=> $b } map { $_->{took} / 1000 } @ok;
    my %status;

    $status{ $_->{status} }++ for @_;
    return (
        ok => scalar @ok, bad => @_ - @ok, status => \%status,
        p50 => at(0.5, @times), p99 => at(0.99, @times),
    );
}

# Requests a second while it loops.
sub tab
{
    my ($seconds, @lines) = @_;
    my ($from, $to) = window($seconds);
    my %answers = answers(@lines);

    return (%answers, served => $answers{ok} / ($to - $from),
        refused => $answers{bad} / ($to - $from));
}

# Those who were told when to return and came just then.
sub returns
{
    my (@lines) = @_;
    my @returns = grep { $_->{attempt} > 1 } @lines;
    my @told = grep { $_->{attempt} == 1 && $_->{told} >= 0 } @lines;

    return (
        made => scalar @returns,
        served => scalar(grep { $_->{status} == 200 } @returns),
        refused_first => scalar @told,
        whole_only => @told && !grep({ $_->{told} % 1e6 } @told) ? 1 : 0,
    );
}

# Seconds from when the first one comes until the last one is served.
sub herd
{
    my ($clients, @lines) = @_;
    my @served = grep { $_->{status} == 200 } @lines;
    my $end = max(0, map { $_->{at} + $_->{took} } @served) / 1e6;
    my @told = grep { $_->{told} >= 0 } @lines;

    return (
        answers(@lines), clients => $clients, unserved => $clients - @served,
        after => $end - HERD_AT, attempts => @lines / $clients,
        whole_only => @told && !grep({ $_->{told} % 1e6 } @told) ? 1 : 0,
    );
}

1;
