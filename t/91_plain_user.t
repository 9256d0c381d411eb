# The server of somebody who is not root: a few of the other tests once more as
# nobody, on a copy that nobody may read.
use strict;
use warnings;
use FindBin;
use lib "$FindBin::Bin/lib";
use Test::More;
use DBGuard::Stack qw(builddir dbguardctl slurp sourcedir wait_until);

plan skip_all => 'only root can be somebody else' if $> != 0;
plan skip_all => 'no setpriv'
    if !grep { -x "$_/setpriv" } split /:/, $ENV{PATH};

my $dir = DBGuard::Process::temporary_folder();
mkdir "$dir/$_" for qw(build build/.libs tmp);
system('cp', '-R', (map { sourcedir() . "/$_" } qw(t conf src)), $dir) == 0
    or die 'cannot copy';
system('cp', dbguardctl(), builddir() . '/dbguard-monitor', "$dir/build") == 0
    or die 'cannot copy';
system('cp', builddir() . '/.libs/mod_dbguard.so', "$dir/build/.libs") == 0
    or die 'cannot copy';
system('chmod', '-R', 'a+rX,u+w', $dir);
chmod 01777, "$dir/tmp";

my ($uid, $gid) = (getpwnam 'nobody')[2, 3];
my %running;
for my $name (grep { -e "$dir/t/$_.t" } qw(10_limit 20_directives 30_status)) {
    $running{$name} = DBGuard::Process->spawn(output => "$dir/$name.out",
        command => ['setpriv', "--reuid=$uid", "--regid=$gid",
            '--clear-groups', 'env', "TMPDIR=$dir/tmp", "HOME=$dir/tmp",
            "DBGUARD_BUILDDIR=$dir/build", $^X, "-I$dir/t/lib",
            "$dir/t/$name.t"]);
}
for my $name (sort keys %running) {
    wait_until(sub { !$running{$name}->alive }, 180, "$name.t to end");
    is($running{$name}->stop('TERM', 0), 0, "$name.t as nobody")
        or diag(join "\n", grep { /^ *(?:not ok|#(?! Subtest))/ }
            split /\n/, slurp("$dir/$name.out"));
}
is_deeply([glob "$dir/tmp/*"], [], 'nothing is left');

done_testing;
