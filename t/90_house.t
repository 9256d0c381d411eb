# The house is in order: layers, the module's own dependencies, directives,
# messages, figures and documents that belong together, and tests that are run.
# Starts nothing.
use strict;
use warnings;
use FindBin;
use lib "$FindBin::Bin/lib";
use Test::More;
use File::Find qw(find);
use DBGuard::Stack qw(builddir slurp sourcedir);

my $top = sourcedir();
my @files;
find({ no_chdir => 1, wanted => sub {
    push @files, substr $_, 1 + length $top if -f;
} }, map { "$top/$_" } qw(src t docs conf));
push @files, 'mod_dbguard.c';
@files = sort @files;
my %text = map { $_ => slurp("$top/$_") } @files;
my @c = grep { /\.(?:c|h|def)$/ } @files;

sub in { my $regex = shift; return grep { $_ =~ $regex } @files }

# C without comments, and without what is in quotation marks.
sub code
{
    my ($text) = @_;
    $text =~ s{("(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')|/\*.*?\*/|//[^\n]*}
        {defined $1 ? $1 : ' '}gse;
    return $text;
}
sub bare { code($_[0]) =~ s/"(?:[^"\\\n]|\\.)*"/""/gr }

# The body of a function of that name.
sub body
{
    my ($text, $name) = @_;
    $text =~ /^[\w *]+\b\Q$name\E\([^;{]*\)\n\{\n(.*?)^\}/ms
        or die "no function $name";
    return $1;
}

# Lists what should not have been found.
sub none
{
    my ($what, @found) = @_;
    ok(!@found, $what) or diag(join "\n", @found);
}

# ---- layers

my %may_include = (
    'src/core' => [qw(src/core)],
    'src/view' => [qw(src/view src/core)],
    'src/httpd' => [qw(src/httpd src/view src/core src)],
    'src/ctl' => [qw(src/ctl src/view src/core src)],
    'src/monitor' => [qw(src/monitor src/core src)],
);

sub includes
{
    my ($file) = @_;
    return code($text{$file}) =~ /^\s*#\s*include\s+([<"][^>"\n]+[>"])/mg;
}

# Names of headers of our own, and where they are: in a layer, or beside them
# all (what asks the system, which the core must not).
my %home = map { m{^(src(?:/\w+)?)/([^/]+\.(?:h|def))$} ? ($2 => $1) : () } @c;

for my $layer (sort keys %may_include) {
    my @wrong;
    for my $file (in(qr{^\Q$layer\E/})) {
        for my $include (includes($file)) {
            my ($name) = $include =~ /^.(.*).$/;
            if (my $home = $home{$name}) {
                next if grep { $_ eq $home } @{ $may_include{$layer} };
            }
            elsif ($name =~ /^apr_/) {
                next if $layer =~ /httpd|ctl/
                    || $name =~ /^apr_(?:errno|siphash)\.h$/;
            }
            # Others in quotation marks are httpd's.
            elsif ($layer eq 'src/httpd' || $include =~ /^</
                && $name !~ /^(?:ap_|http|mod_|mpm|util_|scoreboard|unixd)/) {
                next;
            }
            push @wrong, "$file: $include";
        }
    }
    none("$layer includes only what it may", @wrong);
}
none('mod_dbguard.c includes the glue and nothing else',
    grep { !/^"glue\.h"$/ } includes('mod_dbguard.c'));
none('only the monitor may know the database',
    grep { $text{$_} =~ /#\s*include.*(?:mysql|mariadb)/ }
        grep { !m{^src/monitor/} } @c);

my $forbidden = qr/\b(?:
    time|clock|clock_\w+|gettimeofday|localtime\w*|gmtime\w*|apr_time_\w+
    |sleep|usleep|nanosleep|poll|select
    |v?f?printf|puts|putchar|perror|syslog|ap_log_\w+|ap_\w+
    |malloc|calloc|realloc|free|strdup|apr_p\w*alloc\w*|apr_pool_\w+
    |apr_p?str\w+
    |f?open\w*|f?read|f?write|close|mmap|munmap|apr_file_\w+|apr_mmap_\w+
    |getpid|getenv|kill|fork|rand\w*|random|sem_(?:wait|timedwait|clockwait)
    )\s*\(/x;
none('src/core has no clock, no input or output, no log and no memory', map {
    my $file = $_;
    map { "$file: $_" } bare($text{$file}) =~ /($forbidden)/g;
} in(qr{^src/core/}));
# Neither a global nor a static one: everything is in the board, but for what a
# thread knows of itself.
my $variable = qr/^([a-z_][\w *]*[ *]\w+(?:\[\w*\])*(?: =[^;]*)?;)$/m;
none('src/core has no variables', map {
    my $file = $_;
    map { "$file: $_" } grep { !/\bconst\b|\b__thread\b|^typedef|^extern|\(/ }
        bare($text{$file}) =~ /$variable/g;
} in(qr{^src/core/.*\.c$}));

# ---- directives

my $config = $text{'src/httpd/config.c'};
my @directives = $config =~ /^\s*AP_INIT_\w+\("(\w+)"/mg;
cmp_ok(scalar(@directives), '>=', 7, 'the directives are found');
my %times;
$times{$_}++ for @directives;
none('no directive is there twice', grep { $times{$_} > 1 } keys %times);
my @pages = map { m{^docs/directives/(DBGuard\w*)\.md$} } @files;
is_deeply([sort @pages], [sort @directives],
    'every directive has a page, and every page a directive');
for my $directive (sort @directives) {
    my $page = $text{"docs/directives/$directive.md"} // '';
    for my $part (qw(Description Syntax Default Context Module Compatibility)) {
        like($page, qr/^\W*$part\b/m, "$directive: $part");
    }
    like($page, qr/Syntax\W+$directive\b/, '... its own syntax');
    like($page, qr/^## Example.*?^    \S/ms, '... an example');
    like($text{'docs/directives/README.md'} // '', qr/\($directive\.md\)/,
        '... in the list of all');
    like($text{'conf/dbguard.conf'}, qr/^[# ]*$directive\s/m,
        '... in the sample configuration');
}
# What the table of settings says is what the page says.
while ($config =~ /\{"(DBGuard\w+)",\s*(?:NULL|"([\w-]+)"),\s*TYPE_\w+,
    [^"]*?"([^"]+)",/gx) {
    my ($directive, $key, $default) = ($1, $2, $3);
    my ($row) = ($text{"docs/directives/$directive.md"} // '')
        =~ /^\| Default \| (.*)/m;
    my $value = defined $key ? "$key=$default" : "$directive $default";
    like($row // '', qr/\b\Q$value\E\b/, "$directive: the default is $value");
}

for my $struct (qw(server dir)) {
    my ($fields) = $text{'src/httpd/glue.h'}
        =~ /typedef struct dbguard_${struct}_t \{(.*?)\n\}/s;
    my $create = body($config, "dbguard_${struct}_create");
    my $merge = body($config, "dbguard_${struct}_merge");
    my $zeroed = $create =~ /apr_pcalloc\(/;
    # Of several on a line, too; those of the main server are not merged.
    for my $line (split /;/, $fields =~ s{/\* main server only \*/}{}gr
        =~ s/^.*\b(?:set\[|dsn;).*$//mgr) {
        for my $field (code($line) =~ /\b(\w+)(?=\s*(?:,|\[|$))/g) {
            ok($zeroed || $create =~ /->$field\b/, "$struct.$field is created");
            like($merge, qr/add->$field\b/, "$struct.$field is merged");
        }
    }
}
like(body($config, 'dbguard_server_merge'), qr/base, sizeof/,
    'the settings of the main server are those of all');

# ---- messages

my %message;
for my $file (grep { m{^src/|^mod_} } @c) {
    my $source = $text{$file};
    while ($source =~ /DBGUARD(\d{4}): ((?:[^"\\]|\\.)*)/g) {
        my ($number, $words) = ($1, $2);
        my ($first) = $words =~ /^(\w+)/;
        push @{ $message{$number} }, { file => $file, first => $first // '' };
    }
    none("$file: every message has a number",
        grep { !/DBGUARD(?:\d{4}|%04u): / }
        map { s/\s+/ /gr } code($source) =~ /\bap_log_r?error\((.*?)\);/gs);
}
# Those of the lint are made of a table.
while ($text{'src/core/lint.c'} =~ /^    \{"([\w-]+)", (\d+), [01], /mg) {
    push @{ $message{ sprintf '%04d', $2 } }, { file => 'lint', first => $1 };
}
my $page = $text{'docs/messages.md'} // '';
my @documented = $page =~ /^## DBGUARD(\d{4})$/mg;
is_deeply([sort @documented], [sort keys %message],
    'every message has one entry, and every entry a message');
is_deeply(\@documented, [sort @documented], 'in order');
is_deeply([$page =~ /^\| \[DBGUARD(\d{4})\]/mg], \@documented,
    'the table at the top is the same');
for my $entry (split /^(?=## DBGUARD)/m, $page =~ s/\A.*?(?=^## DBGUARD)//msr) {
    my ($name) = $entry =~ /^## (DBGUARD\d+)/;
    for my $part (qr/^Level: /m, qr/^Cause: /m, qr/^What to do: /m) {
        like($entry, $part, "$name: $part");
    }
}
for my $number (sort keys %message) {
    my %first = map { $_->{first} => 1 } grep { $_->{first} ne '' }
        @{ $message{$number} };
    is(scalar(keys %first) <= 1, 1, "DBGUARD$number is one message")
        or diag(join ', ', keys %first);
}

# ---- figures

my $status = $text{'docs/status.md'} // '';
my @counters = $text{'src/core/counters.def'} =~ /^COUNTER\(\w+,\s*"(\w+)"/mg;
my @reasons = $text{'src/core/reasons.def'} =~ /^REASON\(\w+,\s*"(\w+)"/mg;
my @lines = $text{'src/view/auto.c'} =~ /line\(view, "(\w+)"/g;
cmp_ok(scalar(@counters), '>', 10, 'the counters are found');
for my $name (@counters, @lines) {
    like($status, qr/`DBGuard$name`/, "docs/status.md has DBGuard$name");
}
my %known = map { $_ => 1 } @counters, @lines;
none('docs/status.md has no others', grep { !$known{$_} }
    $status =~ /^\| `DBGuard(\w+)`/mg);
for my $reason (grep { $_ ne 'none' } @reasons) {
    like($status, qr/refused\($reason\)/, "docs/status.md has $reason");
}
like($status, qr/\Q$_\E/, "docs/status.md has $_")
    for map { "^$_" } $text{'src/httpd/logitems.c'} =~ /add\(pconf, "\^(\w+)"/g;
like($status, qr/\b$_\b/, "docs/status.md has $_")
    for $text{'src/httpd/request.c'} =~ /"(DBGUARD_(?!HOLD_END)\w+)"/g;

# ---- documents

my ($version) = slurp("$top/configure.ac")
    =~ /^AC_INIT\(\[\w+\], \[([\d.]+)\]/m;
my ($newest) = slurp("$top/ChangeLog") =~ /^mod_dbguard ([\d.]+)\b/m;
is($newest, $version, 'the version is the newest entry of the ChangeLog');
my @broken;
for my $file (grep { /\.md$/ } @files) {
    (my $folder = $file) =~ s{[^/]+$}{};
    while ($text{$file} =~ /\]\(([^)#:]+)(?:#[^)]*)?\)/g) {
        push @broken, "$file: $1" if !-e "$top/$folder$1";
    }
}
none('every link in docs leads somewhere', @broken);
my $man = $text{'docs/man/dbguardctl.1'} =~ s/\\-/-/gr;
my ($options) = $text{'src/ctl/dbguardctl.c'}
    =~ /getopt_long\(argc, argv, "([\w:]+)",/;
like($man, qr/(?<!\w)-$_\b/, "dbguardctl.1 has -$_") for $options =~ /\w/g;
my @long = $text{'src/ctl/dbguardctl.c'} =~ /\{"([\w-]+)", \w+_argument/g;
cmp_ok(scalar(@long), '>=', 2, 'the long options are found');
like($man, qr/(?<!\w)--$_\b/, "dbguardctl.1 has --$_") for @long;
like($man, qr/^\.B $_$/m, "dbguardctl.1 has the exit code $_") for 0 .. 3;

# ---- the module

SKIP: {
    my $so = builddir() . '/.libs/mod_dbguard.so';
    skip 'sanitizers bring their own', 2 if $ENV{DBGUARD_PRELOAD};
    skip 'no readelf', 2 if !grep { -x "$_/readelf" } split /:/, $ENV{PATH};
    my ($code, $dynamic) = DBGuard::Process::run('readelf', '-d', $so);
    none('the module needs nothing but libc',
        grep { !/^(?:libc|ld-linux[\w-]*)\.so/ }
            $dynamic =~ /\(NEEDED\).*\[(.*)\]/g);
    ($code, my $table)
        = DBGuard::Process::run('readelf', '-W', '--dyn-syms', $so);
    my @symbols = map { [split] } split /\n/, $table;
    is_deeply([map { $_->[7] } grep {
        ($_->[4] // '') =~ /GLOBAL|WEAK/ && $_->[6] ne 'UND' } @symbols],
        ['dbguard_module'], 'the module exports its module record and no more');
}

# ---- style

none('no line has more than 80 columns', map {
    my ($file, $n) = ($_, 0);
    map { $n++; length > 80 ? "$file:$n" : () } split /\n/, $text{$file};
} @c);
none('no tabs', grep { $text{$_} =~ /\t/ } @c, in(qr{^t/.*\.(?:t|pm)$}));
none('no white space at the end of a line', grep { $text{$_} =~ /[ \t]$/m }
    @c, in(qr{\.(?:t|pm|md|conf|php)$}));
none('every file ends with a newline',
    grep { $text{$_} !~ /(?:\A|\n)\z/ } @c, in(qr{\.(?:t|pm|md|conf)$}));
none('every source says what it is', grep {
    $text{$_} !~ m{\A(?:#(?:ifndef|define) \w+\n)*\s*/\*} } @c);

# ---- tests

my $makefile = slurp("$top/Makefile.am") =~ s/\\\n\s*/ /gr;
my ($list) = $makefile =~ /^integration_tests *= *(.*)/m;
my @tests = in(qr{^t/[^/]+\.t$});
is_deeply([sort split ' ', $list], \@tests, 'every t/*.t is in Makefile.am');
none('every test says what it checks', grep {
    $text{$_} !~ /\A# \w/ } @tests);
none('every test is strict and warns', grep {
    $text{$_} !~ /^use strict;\nuse warnings;$/m } @tests);
none('no test may end early without notice', grep {
    $text{$_} !~ /^done_testing;$/m } @tests);
for my $file (in(qr{^t/unit/[^/]+\.[ch]$})) {
    like($makefile, qr{ \Q$file\E( |$)}m, "$file is compiled");
}

done_testing;
