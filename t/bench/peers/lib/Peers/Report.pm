# Prints the figures as tables in Markdown, and what the guard shall do beside
# what it did.
package Peers::Report;

use strict;
use warnings;
use List::Util qw(max min);
use Peers::Rows qw(CONNECTIONS BUDGET);

# Seconds for which each of the herd holds a connection: 50 ms, and what a
# request costs beside them. The ideal is a budget of which nothing lies idle.
use constant HERD_HOLD => 0.052;

# "At its idle p99" is up to this many times it, or a little more: that p99 is
# the third worst of 250 requests, or the fifth of 450.
use constant { SAME => 1.5, SAME_MS => 1 };

# An idle phase this many times slower than the quickest row's says more about
# the machine than about the row.
use constant DISTURBED => 1.5;

my %titles = (
    idle => 'Idle: 40 pages/s and 25 static files/s, nothing else',
    A => 'A. One tab loops on a 0.5 ms endpoint from %g to %g s of %g',
    B => 'B. The external system is three times slower from %g to %g s of %g',
    C => 'C. %s clients arrive within 0.3 s, 50 ms of database each;'
        . ' ideal %.1f s',
);

# How a table's cells are made: heading => text of a cell's figures.
my @page = (
    ['page ok / bad', sub { counts($_[0]{page}) }],
    ['page p50 / p99', sub { both($_[0]{page}) }],
);
my @calc = (['calc ok / bad', sub { counts($_[0]{calc}) }]);
my @static = (
    ['static ok / bad', sub { counts($_[0]{static}) }],
    ['static p50 / p99', sub { both($_[0]{static}) }],
);
my @database = (
    ['1040 PHP / MariaDB', sub {
        "$_[0]{errors_1040} / $_[0]{database}{errors_1040}";
    }],
    ['connections', sub { $_[0]{database}{most} . ' of ' . CONNECTIONS }],
    ['late p99 / max', sub { join ' / ', map { ms($_) }
        @{ $_[0]{late} }{qw(p99 max)} }],
);
my %columns = (
    idle => [@page, @static, @database],
    A => [@page, @calc, @static, ['tab served / refused a second', sub {
        sprintf '%.0f / %.0f', @{ $_[0]{tab} }{qw(served refused)};
    }], @database],
    B => [@page, @calc, ['returns ok / bad', sub {
        my $returns = $_[0]{returns};
        $returns->{served} . ' / ' . ($returns->{made} - $returns->{served});
    }], @static, @database],
    C => [['all served after', sub { after($_[0]{herd}) }],
        ['attempts a client', sub { sprintf '%.2f', $_[0]{herd}{attempts} }],
        ['503 / 500 / no answer', sub {
            join ' / ', map { $_[0]{herd}{status}{$_} // 0 } 503, 500, 0;
        }], @page, @static, @database],
);

sub counts { "$_[0]{ok} / $_[0]{bad}" }
sub both { ms($_[0]{p50}) . ' / ' . ms($_[0]{p99}) }

sub ms
{
    my ($ms) = @_;
    return !defined $ms ? '-' : sprintf $ms < 100 ? '%.1f' : '%.0f', $ms;
}

sub after
{
    my ($herd) = @_;
    return $herd->{unserved} ? "never: $herd->{unserved} were not"
        : sprintf '%.1f s', $herd->{after};
}

# cells: [{ row, scenario, title, mode, seconds, figures }, ...]
sub print_tables
{
    my (@cells) = @_;

    for my $scenario (qw(idle A B C)) {
        my @these = grep { $_->{scenario} eq $scenario } @cells or next;
        my $columns = $columns{$scenario};
        my $title = title($these[0]);
        print "\n$title\n\n";
        print_table(['', map { $_->[0] } @$columns], map {
            my $cell = $_;
            [$cell->{title}, map { $_->[1]->($cell->{figures}) } @$columns];
        } @these);
        print map { "\n$_\n" } notes(@these);
    }
}

sub title
{
    my ($cell) = @_;
    my $scenario = $cell->{scenario};
    my $herd = $cell->{figures}{herd};

    return $titles{idle} if $scenario eq 'idle';
    return sprintf $titles{C}, $herd->{clients}, ideal($herd)
        if $scenario eq 'C';
    return sprintf $titles{$scenario},
        Peers::Load::window($cell->{seconds}), $cell->{seconds};
}

sub ideal { $_[0]{clients} * HERD_HOLD / BUDGET }

sub notes
{
    my (@cells) = @_;
    my @notes;

    for my $cell (@cells) {
        my $returns = $cell->{figures}{returns};
        push @notes, sprintf '%s: told to return, and returning then, served in'
            . ' %d of %d.', $cell->{title}, @$returns{qw(served made)}
            if $returns && $returns->{made};
        push @notes, "$cell->{title}: there was no DBGuard-Retry-After with a"
            . ' fraction; clients went by Retry-After'
            if $returns && $returns->{whole_only} || $cell->{mode} eq 'exact'
            && $cell->{figures}{herd}{whole_only};
    }
    return @notes;
}

sub print_table
{
    my @rows = @_;
    my @width = map {
        my $column = $_;
        max(3, map { length $_->[$column] } @rows);
    } 0 .. $#{ $rows[0] };

    splice @rows, 1, 0, [map { '-' x $_ } @width];
    for my $row (@rows) {
        print '|', (map { sprintf ' %-*s |', $width[$_], $row->[$_] }
            0 .. $#width), "\n";
    }
}

# ---- the bars

# Finds figures, or nothing when they were not measured.
sub finder
{
    my (@cells) = @_;
    return sub {
        my ($row, $scenario, $mode) = @_;
        my ($cell) = grep { $_->{row} eq $row && $_->{scenario} eq $scenario
            && (!$mode || $_->{mode} eq $mode) } @cells;
        return $cell && $cell->{figures};
    };
}

sub print_bars
{
    my $find = finder(@_);
    my @bars = map { $_->($find) } \&bars_a, \&bars_b, \&bars_c, \&bars_static,
        \&bars_1040;

    return if !@bars;
    print "\nWhat mod_dbguard shall do, and did\n\n";
    print_table(['', 'bar', 'measured', 'met'], map {
        my ($scenario, $bar, $measured, $met) = @$_;
        [$scenario, $bar, $measured,
            !defined $met ? 'not judged' : $met ? 'yes' : 'NO'];
    } @bars);
    print disturbed(@_);
}

# A busy machine makes every multiple of the idle p99 easy.
sub disturbed
{
    my @idle = grep { $_->{scenario} eq 'idle' } @_;
    my ($guard) = grep { $_->{row} eq 'guard' } @idle;

    return map {
        my $kind = $_;
        my $p99 = $guard->{figures}{$kind}{p99} // 0;
        my $least = min(map { $_->{figures}{$kind}{p99} // () } @idle);
        $p99 <= DISTURBED * $least ? ()
            : sprintf "\nThe idle phase of mod_dbguard was disturbed: its %s"
                . " p99 was %s ms, the least\nof the rows %s ms. The bars above"
                . " are too easy.\n", $kind, ms($p99), ms($least);
    } $guard ? qw(page static) : ();
}

sub bars_a
{
    my ($find) = @_;
    my $f = $find->('guard', 'A') or return;
    my $alone = $find->('alone', 'A');
    my ($calc, $tab) = @$f{qw(calc tab)};

    my $slowed = $alone && $tab->{served} < $alone->{tab}{served};
    my $first = $f->{page}{bad} == 0 && bad($tab) >= bad($calc);
    return (
        ['A', 'every page served', part($f->{page}), $f->{page}{bad} == 0],
        p99_bar('A', $find, $f->{page}, 3),
        ['A', 'at least 97 % of the calculations served', part($calc),
            bad($calc) <= 0.03],
        ['A', 'the tab slowed or refused first', sprintf(
            '%.0f/s%s, %.1f %% refused', $tab->{served}, $alone
            ? sprintf(' (Apache alone %.0f/s)', $alone->{tab}{served}) : '',
            100 * bad($tab)), $slowed || $first || ($alone ? 0 : undef)],
    );
}

sub bars_b
{
    my ($find) = @_;
    my $f = $find->('guard', 'B') or return;
    my @haproxy = map { $_->{calc}{ok} } grep { $_ }
        map { $find->($_, 'B') } qw(haproxy haproxy-first);
    my $most = max(@haproxy);
    my $returns = $f->{returns};

    return (
        ['B', 'at least 99.5 % of the pages served', part($f->{page}),
            bad($f->{page}) <= 0.005],
        p99_bar('B', $find, $f->{page}, 3),
        calculations_bar($f->{calc}{ok}, $returns->{served}, $most),
        ['B', 'returning when told: served in nine of ten cases',
            "$returns->{served} of $returns->{made}",
            $returns->{made} ? $returns->{served} >= 0.9 * $returns->{made}
            : undef],
    );
}

# Whoever returns takes a token that a first attempt then does not get, so both
# count. With the peers nobody returns: nobody was told to.
sub calculations_bar
{
    my ($first, $returned, $most) = @_;
    my $ok = $first + $returned;
    return ['B', 'at least 95 % of the calculations that HAProxy serves',
        $ok . ($most ? sprintf ' of %d, %.1f %%', $most, 100 * $ok / $most
        : '') . " ($returned of them by returning)",
        $most ? $ok >= 0.95 * $most : undef];
}

sub bars_c
{
    my ($find) = @_;
    my $qos = $find->('qos', 'C');
    my @bars;

    for my $mode (
        ['whole', 'whole seconds', 2.5, 2.5], ['exact', 'fraction', 1.3, 2],
        ['fixed', 'neither'],
    ) {
        my ($name, $words, $times, $attempts) = @$mode;
        my $f = $find->('guard', 'C', $name) or next;
        my ($herd, $scenario) = ($f->{herd}, "C, $words");
        push @bars,
            [$scenario, 'at least 99.5 % of the pages served',
                part($f->{page}), bad($f->{page}) <= 0.005],
            p99_bar($scenario, $find, $f->{page}, 5);
        push @bars,
            [$scenario, "all served in at most $times times the ideal",
                sprintf('%s, %.2f times', after($herd),
                    $herd->{after} / ideal($herd)),
                !$herd->{unserved} && $herd->{after} <= $times * ideal($herd)],
            [$scenario, "at most $attempts attempts a client",
                sprintf('%.2f', $herd->{attempts}),
                $herd->{attempts} <= $attempts] if $times;
        push @bars, [$scenario, 'all served sooner than by mod_qos',
            after($herd) . ($qos ? ', ' . after($qos->{herd}) : ''),
            $qos ? !$herd->{unserved} && ($qos->{herd}{unserved}
                || $herd->{after} < $qos->{herd}{after}) : undef] if !$times;
    }
    return @bars;
}

sub bars_static
{
    my ($find) = @_;
    my $idle = $find->('guard', 'idle');

    return map {
        my ($name, $f) = @$_;
        my $static = $f->{static};
        my $at = $idle && $idle->{static}{p99};
        [$name, 'static files: all served, at their idle p99',
            part($static) . ', ' . ms($static->{p99}) . ' ms'
                . ($at ? ', idle ' . ms($at) . ' ms' : ''),
            !$at ? undef : !$static->{bad} && ($static->{p99} <= SAME * $at
                || $static->{p99} <= $at + SAME_MS)];
    } guarded($find);
}

sub bars_1040
{
    my ($find) = @_;
    return map {
        my ($name, $f) = @$_;
        my $errors = $f->{errors_1040} + $f->{database}{errors_1040};
        [$name, 'not one 1040', "$f->{errors_1040} in PHP,"
            . " $f->{database}{errors_1040} in MariaDB", $errors == 0];
    } guarded($find);
}

# [name, figures] of the scenarios that the guard was in.
sub guarded
{
    my ($find) = @_;
    return grep { $_->[1] } (map { [$_, $find->('guard', $_)] } qw(A B)),
        map { ["C, $_->[1]", $find->('guard', 'C', $_->[0])] }
        ['whole', 'whole seconds'], ['exact', 'fraction'],
        ['fixed', 'neither'];
}

sub p99_bar
{
    my ($scenario, $find, $page, $times) = @_;
    my $idle = $find->('guard', 'idle');
    my $at = $idle && $idle->{page}{p99};

    return [$scenario, "page p99 at most $times times idle",
        ms($page->{p99}) . ' ms' . ($at ? sprintf ', idle %s ms: %.1f times',
            ms($at), ($page->{p99} // 0) / $at : ''),
        $at ? defined $page->{p99} && $page->{p99} <= $times * $at : undef];
}

sub bad
{
    my ($f) = @_;
    my $all = $f->{ok} + $f->{bad};
    return $all ? $f->{bad} / $all : 0;
}

sub part
{
    my ($f) = @_;
    return sprintf '%d of %d, %.1f %%', $f->{ok}, $f->{ok} + $f->{bad},
        100 * (1 - bad($f));
}

1;
