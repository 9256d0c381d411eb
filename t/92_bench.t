# The benchmark of the core still does what it says: it checks every outcome
# itself. Its figures are nobody's business here.
use strict;
use warnings;
use FindBin;
use lib "$FindBin::Bin/lib";
use Test::More;
use DBGuard::Stack qw(builddir);

my ($code, $out) = DBGuard::Process::run(builddir() . '/t/bench/bench_core');

is($code, 0, 'it ends well') or diag $out;
like($out, qr/^$_ +[\d.]+ \+-/m, $_) for 'enter \+ leave, a token is free',
    'leave \+ enter, all slots taken, the rest waits', 'enter, refused',
    'poll of one that waits', 'enter \+ leave of light work, in a crowd';

done_testing;
