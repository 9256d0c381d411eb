# The incident of docs/guide.md for one minute, with the guard: budget 20, 192
# workers, max_connections 24. Not one error 1040, and no answers but 200 and
# 503.
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
is($run->{static}{refused}, 0, 'static files are not refused');
is($run->{static}{served}, $run->{static}{answers}, 'and are all served');
cmp_ok($run->{connections_used}, '<', 24,
    'the database always had a connection to spare');
done_testing;
