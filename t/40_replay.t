# The incident of docs/guide.md for one minute, with the guard: budget 20, 192
# workers, max_connections 24. Every page is served, whatever calculations and
# the looping tab do; not one error 1040, and no answers but 200 and 503.
use strict;
use warnings;
use File::Temp;
use JSON::PP;
use Test::More;
use DBGuard::Stack qw(slurp sourcedir);

my $file = File::Temp->new;
my $replay = sourcedir() . '/t/demo/replay';

is(system("$replay --seconds 60 --guarded-only --json $file >&2"), 0,
    'the replay ran');
my $run = decode_json(slurp("$file"))->{guarded};
for my $kind ('pages', 'calculations', 'static', 'looping tab') {
    my $figures = $run->{$kind};

    cmp_ok($figures->{served}, '>', 0, "$kind: some were served");
    is($figures->{errors_1040}, 0, "$kind: no error 1040");
    is($figures->{errors_500}, 0, "$kind: no 500");
    is_deeply($figures->{other}, {}, "$kind: no other status");
}
for my $kind ('pages', 'static') {
    my $figures = $run->{$kind};

    is($figures->{refused}, 0, "$kind: none is refused");
    is($figures->{no_answer}, 0, '... nor given up');
    is($figures->{served}, $figures->{answers}, '... all are served');
}
# The load was enough for that to mean something.
cmp_ok($run->{calculations}{refused}, '>', 0, 'calculations are refused');
cmp_ok($run->{pages}{p99}, '<', $run->{calculations}{p50},
    'and pages do not wait for them');
cmp_ok($run->{connections_used}, '<', 24,
    'the database always had a connection to spare');
done_testing;
