# Directives: what each of them accepts; that anything else stops the
# configtest and the start with one line that says what is wrong and what would
# be right; and that what is in effect is in the log, with where it came from.
use strict;
use warnings;
use FindBin;
use lib "$FindBin::Bin/lib";
use POSIX ();
use Test::More;
use DBGuard::Stack qw(slurp spew);

my $stack = DBGuard::Stack->new(apache => { workers => 2 });
my $apache = $stack->apache;

# The number of the line of the configuration that matches.
sub line_of
{
    my ($regex) = @_;
    my @lines = split /\n/, slurp($apache->config_file);
    my ($found) = grep { $lines[$_] =~ $regex } 0 .. $#lines;
    return $found + 1;
}

# The last effective configuration in a log: name => [value, source, valid].
sub effective
{
    my ($log) = @_;
    my %set;
    $set{$1} = [$2, $3, $4] while $log =~ /DBGUARD0002: \s effective: \s (.+?)
        \s = \s (.+?) (?:\s\(.*\))?, \s source: \s (.+), \s valid: \s (\w+)$
        /mgx;
    return \%set;
}

# A configuration that must not pass: what is said about the line. A start goes
# the same way as a configtest, and takes longer: some have to do.
my %started;
sub check_refused
{
    my ($what, $config, $line, @expected) = @_;
    my ($directive) = $what =~ /^(\w+)/;

    unlink "$apache->{dir}/log/error.log";
    $apache->set(config => $config);
    my $number = line_of($line);
    my ($code, $output) = $apache->configtest;
    my $start = $directive eq 'DBGuardBudget' || $started{$directive}++ < 3;
    my @said = ($output, $start ? $apache->try_start // '' : ());
    subtest $what => sub {
        isnt($code, 0, 'the configtest fails');
        for my $text (@said) {
            my @ours = $text =~ /^.*DBGUARD\d{4}.*$/mg;
            is(scalar(@ours), 1, 'one line') or diag($text);
            like($ours[0] // '', $_) for @expected;
            like($text, qr/line $number of \Q@{[$apache->config_file]}\E:$/m,
                'file and line');
        }
    };
    $apache->stop;
}

# Directive, what its message says is allowed, and bad values. What the message
# must show of one is what follows its last '=', without quotes, or else it is
# the second of a pair.
my @refused = (
    ['DBGuardBudget', qr/whole number from 1 to 100000/,
        '50 # note', '1k', '150;', 'abc', '${UNDEFINED}', '-1', '0',
        '99999999999', '99999999999999999999', '100001', '', '""', '" "',
        '5 6', '"5 "', '" 5"', ["'5\t'" => 5], '"5', '1.5', '0x10', '+5', '1e2',
        '5,', 'On', 'auto.'],
    ['DBGuardEngine', qr/one of On, Off, DryRun/,
        'Onn', '1', 'true', '', 'On Off', '"On "', 'On # now', 'Dry Run',
        '${UNDEFINED}'],
    ['DBGuard', qr/one of On, Off, or a class that a DBGuardClass defines/,
        'Onn', 'yes', '1', '', 'On Off', '" On"', 'On # here', '${UNDEFINED}',
        'reports', 'reports On', 'default', 'none', '-a'],
    ['DBGuardClass', qr/a name of a class: a letter from a to z, then up to 30/,
        '', '1st', 'Reports', '-x', 'a_b', 'a.b', '"a b"',
        'min=3', 'a' x 32, ['# here' => '#'], '${UNDEFINED}'],
    ['DBGuardClass', qr/a name of a class: it is one of on, off, dryrun, auto/,
        'on', 'off', 'default', 'none', 'auto', 'dryrun', 'all', 'other'],
    ['DBGuardClass', qr/name, then min=.*max=.*patience=.*hold=.*weight=/,
        ['a 5' => 5], ['a minimum=5' => 'minimum=5'], ['a min' => 'min'],
        ['a min=2 5' => 5], ['a min=5 %' => '%'], ['a # here' => '#'], ['a b' => 'b'],
        ['a "min=2' => '"min=2']],
    ['DBGuardClass', qr/a whole number from 0 to 100000, or a share from 0%/,
        'a min=', 'a min=-1', 'a min=101%', 'a min=1.5', 'a min=5k',
        'a min=100001', 'a min=%', 'a min=+1',
        ['a max=2 min=x' => 'x']],
    ['DBGuardClass', qr/a whole number from 1 to 100000, or a share from 1%/,
        'a max=', 'a max=0', 'a max=0%', 'a max=101%', 'a max=auto'],
    ['DBGuardClass', qr/a duration from 1ms to 10min/,
        'a patience=', 'a patience=5', 'a patience=0s', 'a patience=11min',
        'a patience=auto'],
    ['DBGuardClass', qr/a duration from 100ms to 60min/,
        'a hold=', 'a hold=99ms', 'a hold=5', 'a hold=61min'],
    ['DBGuardClass', qr/a whole number from 1 to 100\b/,
        'a weight=', 'a weight=0', 'a weight=101', 'a weight=1.5'],
    ['DBGuardClass', qr/a min \(.*\) up to max \(.*\)/,
        ['a min=3 max=2' => 'min=3 max=2'], ['a max=2% min=3%' => 'min=3%']],
    ['DBGuardClient', qr/session=.*ipv6-prefix=.*hold=.*wait=/,
        '', '5', 'cookie=x', 'session', ['session=a b' => 'b'],
        ['wait=2 # two' => '#']],
    ['DBGuardClient', qr/names of cookies with commas between them, or none/,
        'session=', 'session=a,', 'session=,a', ['"session=a b"' => 'a b'],
        'session=a;b', ['session=a=b' => 'a=b'], 'session=*',
        'session=${UNDEFINED}', 'session=' . 'a' x 65,
        'session=' . join(',', 'a' .. 'q')],
    ['DBGuardClient', qr/a whole number from 32 to 128/,
        'ipv6-prefix=31', 'ipv6-prefix=129', 'ipv6-prefix=/64',
        'ipv6-prefix='],
    ['DBGuardClient', qr/a whole number from 1 to 100000, a share from 1% to/,
        'hold=0', 'hold=0%', 'hold=101%', 'hold=', 'hold=5s'],
    ['DBGuardClient', qr/a whole number from 0 to 1000000/,
        'wait=', 'wait=-1', 'wait=auto', 'wait=1s'],
    ['DBGuardQueue', qr/length=.*patience=/,
        '', '5', 'lenght=5', '=5', 'length', ['length=5 6' => 6],
        ['length=5 # five' => '#']],
    ['DBGuardQueue', qr/whole number from 0 to \d+, or auto/,
        'length=', 'length=-1', 'length=5k', 'length=1.5',
        'length=99999999999', 'length=automatic', '"length=5 "',
        'length="5"x', 'patience=1s length=x'],
    ['DBGuardQueue', qr/duration from 1ms to 10min.*or auto/,
        'patience=', 'patience=5', ['patience=5 s' => 5], 'patience=0s',
        'patience=11min', 'patience=1.5s', 'patience=-1s', 'patience=5sec',
        'patience=5S', 'patience=1h', 'patience=99999999999999999999s',
        'length=5 patience=x', ['patience=x length=5' => 'x']],
    ['DBGuardRefusal', qr/html=.*json=.*status=/,
        '', 'busy.html', 'htm=x', 'status', ['status=503 503' => 503]],
    ['DBGuardRefusal', qr/whole number from 400 to 599/,
        'status=', 'status=200', 'status=399', 'status=600', 'status=50x',
        'status=503;', 'status=418', 'status=599'],
    ['DBGuardRefusal', qr/file/,
        'html=/nowhere/busy.html', 'json=/nowhere/busy.json', 'html=/',
        'html=${UNDEFINED}/busy.html', 'html=/dev/null', 'html=',
        'html=conf/fifo'],
    ['DBGuardRetryAfter', qr/min=.*max=/,
        '', '5s', 'minimum=5s', 'min', ['min=2s 10s' => '10s']],
    ['DBGuardRetryAfter', qr/whole seconds from 1s to 60min/,
        'min=', 'min=0s', 'min=5', 'min=1500ms', 'min=999ms', 'min=-1s',
        'max=61min', 'max=1.5s', ['max=10 s' => 10], 'max=99999999999s'],
    ['DBGuardRetryAfter', qr/min.*max/,
        ['min=20s max=10s' => '20s'], ['max=10s min=20s' => '20s']],
    ['DBGuardScoreboard', qr/file name/,
        '', '""', '${UNDEFINED}', 'one two', 'dbguard.scoreboard # here'],
    ['DBGuardReserve', qr/a whole number from 0 to 100000, a share from 0% to/,
        '', '-1', '91%', '5.5', '%', '10 %', '3 # for cron', '1k', 'none'],
    ['DBGuardDatabase', qr/mariadb:\/\/USER\@HOST/,
        '', 'localhost', 'mysql://u@h', 'mariadb://h', 'mariadb://@h',
        'mariadb://u@', 'mariadb://u@h:0', 'mariadb://u@h:65536',
        'mariadb://u@h/db', 'mariadb://u@h tls', 'mariadb://u@h tls=maybe',
        'mariadb://u@h extra-port=0', 'mariadb://u@h # here',
        'mariadb://${UNDEFINED}@h'],
    ['DBGuardPasswordFile', qr/file name/, '', '${UNDEFINED}', 'one two'],
    ['DBGuardOutage', qr/one of refuse, admit/, '', 'off', 'refuse admit'],
    ['DBGuardLint', qr/one of warn, refuse, off/, '', 'on', 'warn # only'],
    ['DBGuardSnapshot', qr/every=.*file=/, '', '10s', 'each=10s', 'file'],
    ['DBGuardSnapshot', qr/whole seconds from 1s to 60min/,
        'every=0s', 'every=500ms', 'every=10', 'every=61min'],
);

# It would be waited for, if it were opened.
POSIX::mkfifo($apache->dir . '/conf/fifo', 0600) or die "mkfifo: $!";

for my $case (@refused) {
    my ($directive, $allowed, @values) = @$case;
    for (@values) {
        my ($value, $shown) = ref $_ ? @$_ : ($_, s/^.*=//r =~ s/^"|"$//gr);
        check_refused("$directive $value", "$directive $value",
            qr/^$directive /, qr/\b$directive\b/, qr/'[^']*\Q$shown\E[^']*'/,
            $allowed);
    }
}

subtest 'a hint for the usual mistakes' => sub {
    $apache->set(config => 'DBGuardBudget 50 # note');
    like(($apache->configtest)[1], qr/comment needs a line of its own/, '#');
    $apache->set(config => 'DBGuardBudget ${UNDEFINED}');
    like(($apache->configtest)[1], qr/variable in it is not defined/, '${}');
};

subtest 'wrong places' => sub {
    my %example = (
        DBGuardEngine => 'On', DBGuardBudget => 5, DBGuardQueue => 'length=5',
        DBGuardRetryAfter => 'min=2s', DBGuardScoreboard => 'x',
        DBGuardRefusal => 'status=503', DBGuard => 'On', DBGuardReserve => 3,
        DBGuardDatabase => 'mariadb://u@h', DBGuardPasswordFile => 'x',
        DBGuardOutage => 'admit', DBGuardLint => 'off',
        DBGuardSnapshot => 'every=5s', DBGuardClass => 'a',
        DBGuardClient => 'wait=3',
    );
    my %places = (
        'VirtualHost' => [['<VirtualHost *:1>'], ['</VirtualHost>'],
            qr/^DBGuard(Refusal)?$/],
        'Directory' => [['<Directory />'], ['</Directory>'], qr/^DBGuard$/],
        'Location' => [['<Location />'], ['</Location>'], qr/^DBGuard$/],
        'Files' => [['<Files x>'], ['</Files>'], qr/^DBGuard$/],
        'If' => [['<If "true">'], ['</If>'], qr/^DBGuard$/],
        'Limit' => [['<Directory />', '<Limit GET>'],
            ['</Limit>', '</Directory>'], qr/^$/],
        'IfModule' => [['<IfModule dbguard_module>'], ['</IfModule>'], qr/./],
    );
    for my $place (sort keys %places) {
        my ($open, $close, $good) = @{ $places{$place} };
        for my $directive (sort keys %example) {
            my $line = "$directive $example{$directive}";
            my $config = join "\n", @$open, $line, @$close;
            if ($directive =~ $good) {
                $apache->set(config => $config);
                my ($code, $output) = $apache->configtest;
                is($code, 0, "$directive in <$place>") or diag($output);
                next;
            }
            check_refused("$directive not in <$place>", $config,
                qr/^$line$/, qr/\b$directive\b/, qr/cannot occur/);
        }
    }
};

subtest 'good values' => sub {
    spew("$apache->{dir}/conf/busy.html", "busy\n");
    spew("$apache->{dir}/conf/busy.json", "{}\n");
    my %good = (
        DBGuardEngine => [qw(On Off DryRun on OFF dryrun DRYRUN "On")],
        DBGuard => [qw(On Off on OFF "on")],
        DBGuardBudget => [qw(1 7 100000 007 "50")],
        DBGuardQueue => [qw(length=0 length=1000000 length=auto length=AUTO
            LENGTH=5 patience=1ms patience=10min patience=2s patience=auto),
            'length=5 patience=250ms', 'patience=2s length=auto',
            '"length=5" "patience=2s"'],
        DBGuardRefusal => [qw(status=400 status=429 status=503 status=511
            html=conf/busy.html json=conf/busy.json STATUS=503),
            "html=$apache->{dir}/conf/busy.html json=conf/busy.json "
                . 'status=503'],
        DBGuardRetryAfter => [qw(min=1s min=10s max=2s max=60min max=1min
            min=3000ms MAX=5s), 'min=5s max=5s', 'min=20s max=30s',
            'max=30s min=20s'],
        DBGuardScoreboard => [qw(x "x" /tmp/x run/x), '"a board"', '"x # y"'],
        DBGuardClass => ['a', '"a"', 'a-1', 'a' x 31, 'a min=2', 'a min=0',
            'a min=50%', 'a max=1', 'a max=100%', 'a MIN=1 max=1',
            'a max=3 min=3', 'a patience=1ms', 'a hold=100ms', 'a weight=100',
            'a min=1 max=50% patience=2s hold=60min weight=2',
            'a "min=1" "max=2"'],
        DBGuardClient => ['session=sid', 'session=a,b.c,d*', 'session=none',
            'ipv6-prefix=32', 'ipv6-prefix=128', 'hold=1', 'hold=100%',
            'hold=auto', 'wait=0', 'WAIT=3',
            'session=sid ipv6-prefix=56 hold=3 wait=4'],
    );
    for my $directive (sort keys %good) {
        for my $value (@{ $good{$directive} }) {
            for my $name ($directive, lc $directive) {
                $apache->set(config => "$name $value");
                my ($code, $output) = $apache->configtest;
                is($code, 0, "$name $value") or diag($output);
            }
        }
    }
    $apache->set(config => "DBGuardRetryAfter min=20s\n"
        . "DBGuardRetryAfter max=30s\n");
    my ($code, $output) = $apache->configtest;
    is($code, 0, 'min and max on two lines') or diag($output);
    for my $order ("DBGuard a\nDBGuardClass a", "DBGuardClass a\nDBGuard a",
        "<Location /x>\nDBGuard a\n</Location>\nDBGuardClass \"a\" min=1",
        "<VirtualHost *:1>\nDBGuard a\n</VirtualHost>\n"
            . "<IfModule dbguard_module>\nDBGuardClass a\n</IfModule>") {
        $apache->set(config => $order);
        ($code, $output) = $apache->configtest;
        is($code, 0, $order =~ s/\n/; /gr) or diag($output);
    }
    $apache->set(config => join '', map { "DBGuardClass c$_\n" } 1 .. 16);
    is(($apache->configtest)[0], 0, '16 classes');
    $apache->set(config => "Define TOKENS 12\nDBGuardBudget \${TOKENS}");
    is(($apache->configtest)[0], 0, 'a defined variable');
};

check_refused('DBGuardClass twice', "DBGuardClass a\nDBGuardClass a min=1",
    qr/^DBGuardClass a min/, qr/DBGuardClass: 'a' is not a new name/,
    qr/httpd\.conf:\d+ defines it/);
check_refused('DBGuardClass, 17 of them',
    join('', map { "DBGuardClass c$_\n" } 1 .. 17), qr/^DBGuardClass c17/,
    qr/'c17' is not one of the first 16 classes/);
check_refused('DBGuardClass above 100 %',
    "DBGuardClass a min=60%\nDBGuardClass b min=50%", qr/^DBGuardClass b/,
    qr/'50%' is not what .* leave of 100%: 40%/);
check_refused('DBGuard, and its DBGuardClass in a block that is not there',
    "DBGuard a\n<IfModule no_such_module>\nDBGuardClass a\n</IfModule>",
    qr/^DBGuard a/, qr/DBGuard: 'a' is not one of On, Off, or a class/);

subtest 'minimums that do not fit the budget' => sub {
    my $file = $apache->config_file;
    for my $case (
        ["DBGuardBudget 5\nDBGuardClass a min=3\nDBGuardClass b min=3", 'b',
            qr/min=3 the minimums .* 6 tokens.* \(\Q$file\E:\d+\) is 5;/],
        ["DBGuardClass a min=50%\nDBGuardClass b min=8\nDBGuardBudget 10",
            'b', qr/are 13 tokens/],
        ["DBGuardClass a min=3 max=20%\nDBGuardBudget 10", 'a',
            qr/min=3 is more than max=20%/],
        ['DBGuardClass a min=8', 'a', qr/DBGuardBudget auto without .* is 7/],
        ["DBGuardDatabase mariadb://u\@127.0.0.1:1\nDBGuardBudget 5\n"
            . 'DBGuardClass a min=6', 'a', qr/are 6 tokens/],
    ) {
        my ($config, $name, $why) = @$case;
        $apache->set(config => $config);
        my ($code, $output) = $apache->configtest;
        my $line = line_of(qr/^DBGuardClass $name /);
        isnt($code, 0, $config =~ s/\n/; /gr);
        like($output, qr/DBGUARD0044: \Q$file\E:$line: DBGuardClass $name: /,
            '... file, line and name');
        like($output, $why, '... and why');
        is(scalar(() = $output =~ /DBGUARD\d{4}/g), 1, '... in one line')
            or diag($output);
    }
    like($apache->try_start // '', qr/DBGUARD0044/, 'nor does a server start');
    $apache->stop;
    for my $config ("DBGuardBudget 6\nDBGuardClass a min=3\nDBGuardClass b min=3",
        "DBGuardDatabase mariadb://u\@127.0.0.1:1\nDBGuardClass a min=60") {
        $apache->set(config => $config);
        my ($code, $output) = $apache->configtest;
        is($code, 0, $config =~ s/\n/; /gr) or diag($output);
    }
};

is_deeply([glob $apache->runtime_dir . '/*'], [],
    'configtests and failed starts leave nothing behind');

subtest 'what is in effect is in the log' => sub {
    my $file = "$apache->{dir}/conf/more.conf";
    spew($file, "# here\nDBGuardQueue length=3\n");
    spew("$apache->{dir}/conf/busy.html", "busy\n");
    $apache->set(docroot_config => 'DBGuard On', config => <<'END');
DBGuardEngine dryrun
DBGuardBudget 1
DBGuardBudget 5
Include conf/more.conf
DBGuardRefusal html=conf/busy.html
DBGuardRetryAfter min=3s
DBGuardClass "reports" MAX=20% weight=02
DBGuardClient session=sid,app*
END
    $apache->start;
    my $log = $apache->error_log;
    my $here = $apache->config_file;
    my $busy = line_of(qr/busy\.html/);
    my $all = effective($log);
    my $guard = delete $all->{DBGuard};
    is_deeply($all, {
        'DBGuardEngine' =>
            ['DryRun', "$here:" . line_of(qr/^DBGuardEngine/), 'yes'],
        'DBGuardBudget' =>
            [5, "$here:" . line_of(qr/^DBGuardBudget 5/), 'yes'],
        'DBGuardQueue length' => [3, "$file:2", 'yes'],
        'DBGuardQueue patience' => ['auto', 'default', 'yes'],
        'DBGuardRefusal status' => [503, 'default', 'yes'],
        'DBGuardRefusal html' => ['conf/busy.html', "$here:$busy", 'yes'],
        'DBGuardRefusal json' => ['built-in', 'default', 'yes'],
        'DBGuardRetryAfter min' =>
            ['3s', "$here:" . line_of(qr/^DBGuardRetry/), 'yes'],
        'DBGuardRetryAfter max' => ['120s', 'default', 'yes'],
        'DBGuardClass' => ['reports max=20% weight=2',
            "$here:" . line_of(qr/^DBGuardClass/), 'yes'],
        'DBGuardClient session' => ['sid,app*',
            "$here:" . line_of(qr/^DBGuardClient/), 'yes'],
        'DBGuardClient ipv6-prefix' => [64, 'default', 'yes'],
        'DBGuardClient hold' => ['auto', 'default', 'yes'],
        'DBGuardClient wait' => [2, 'default', 'yes'],
        'DBGuardScoreboard' => ['dbguard.scoreboard', 'default', 'yes'],
        'DBGuardReserve' => ['auto', 'default', 'yes'],
        'DBGuardDatabase' => ['none', 'default', 'yes'],
        'DBGuardPasswordFile' => ['none', 'default', 'yes'],
        'DBGuardOutage' => ['refuse', 'default', 'yes'],
        'DBGuardLint' => ['warn', 'default', 'yes'],
        'DBGuardSnapshot every' => ['10s', 'default', 'yes'],
        'DBGuardSnapshot file' => ['none', 'default', 'yes'],
    }, 'name, value, source, valid');
    like($guard->[0], qr/\b1\b/, 'DBGuard: in how many places');
    is($guard->[2], 'yes', '... valid');
    my @lines = $log =~ /DBGUARD0002/g;
    is(scalar(@lines), 23, 'a line a value, once');
    like($log, qr/max=20% weight=2 \(max 1 of 5 tokens\)/,
        'a share in tokens');
    like($log, qr/dbguard:notice.*DBGUARD0002/, 'level notice');
};

subtest 'a configtest does not touch a live scoreboard' => sub {
    my @before = (stat $apache->scoreboard)[1, 7, 9];
    my $bytes = slurp($apache->scoreboard);
    my @files = glob $apache->runtime_dir . '/*';
    for my $budget (3, '3x') {
        $apache->set(config => "DBGuardEngine On\nDBGuardBudget $budget\n");
        $apache->configtest;
    }
    is_deeply([(stat $apache->scoreboard)[1, 7, 9]], \@before, 'same file');
    ok(slurp($apache->scoreboard) eq $bytes, 'same content');
    is_deeply([glob $apache->runtime_dir . '/*'], \@files, 'nothing beside it');
    $apache->stop;
    ok(!-e $apache->scoreboard, 'gone when the server is stopped');
};

subtest 'unguarded servers say so' => sub {
    $apache->set(config => '', docroot_config => '');
    $apache->start;
    like($apache->error_log, qr/DBGUARD0015:.*guards nothing/,
        'a module without configuration');
    ok(!-e $apache->scoreboard, '... makes no scoreboard');
    is_deeply([grep { /DBGuard/ } keys %{ $apache->status_auto }], [],
        '... and shows no figures');
    is($apache->get('/static.txt')->{status}, 200, '... and serves');
    $apache->stop;

    $apache->set(config => 'DBGuardEngine On');
    $apache->start;
    like($apache->error_log, qr/:warn\].*DBGUARD0003: nothing is guarded/,
        'On, and DBGuard On nowhere');
    $apache->stop;

    unlink "$apache->{dir}/log/error.log";
    $apache->set(docroot_config => 'DBGuard On');
    $apache->start;
    unlike($apache->error_log, qr/DBGUARD0003|DBGUARD0015/,
        'On, and somewhere');
    $apache->stop;
};

subtest '.htaccess' => sub {
    $apache->set(config => 'DBGuardEngine On', docroot_config =>
        "AllowOverride All\n");
    $apache->start;
    for my $line ('DBGuard On', 'DBGuard Off', 'DBGuardBudget 5') {
        my ($name) = split ' ', $line;
        $apache->write_file('.htaccess', "$line\n");
        is($apache->get('/static.txt')->{status}, 500, $line);
        like($apache->error_log, qr/\.htaccess: $name not allowed here/,
            '... and why');
    }
    $apache->stop;
};

done_testing;
