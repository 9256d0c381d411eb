# The figures: server-status?auto, the section of its page, and dbguardctl on
# the same snapshot, which answers while every worker is stuck and says what is
# wrong when there is nothing to read.
use strict;
use warnings;
use FindBin;
use lib "$FindBin::Bin/lib";
use Test::More;
use File::Copy qw(copy);
use Time::HiRes qw(clock_gettime CLOCK_MONOTONIC);
use DBGuard::Stack qw(builddir dbguardctl slurp sourcedir spew wait_until);

my $config = <<'END';
DBGuardEngine On
DBGuardBudget 2
DBGuardQueue length=2 patience=20s
END
my $stack = DBGuard::Stack->start(apache => {
    workers => 8, php => 1, config => $config, docroot_config => 'DBGuard On',
    files => {
        'hold.php' => '<?php while (!file_exists($_GET["gate"])) usleep(5000);',
        'x.php' => '<?php echo 1;',
        'fast.php' => '<?php usleep(5000);',
        'slow.php' => '<?php usleep(250000);',
    },
});
my $apache = $stack->apache;
my $gate = $apache->dir . '/run/gate';

# name, and what it counts, of every total there is.
my %counters = slurp(sourcedir() . '/src/core/counters.def')
    =~ /^COUNTER\(\w+,\s*"(\w+)",\s*((?:"[^"]*"\s*)+)\)/mg;
s/"\s*"//g, s/^"|"\s*$//g for values %counters;

sub auto_text { $apache->get('/server-status?auto')->{body} }
sub our_lines { join "\n", grep { /^DBGuard/ } split /\n/, $_[0] }
sub section { $_[0] =~ m{(<section id="dbguard" .*?</section>)}s; $1 }

# Two hold, two wait, one was refused, which is no better than those; one was
# served before.
sub fill
{
    my ($path) = @_;
    my @requests;
    unlink $gate;
    $apache->get('/x.php');
    for my $i (1 .. 4) {
        push @requests, $apache->get_async("$path?gate=$gate&$i");
        wait_until(sub {
            my $auto = $apache->status_auto;
            $auto->{DBGuardHeld} + $auto->{DBGuardWaiting} == $i;
        }, 10, "$i of them");
    }
    $apache->get("$path?gate=$gate&5");
    return @requests;
}

# A graceful restart, after which nobody serves with the configuration before.
sub restart
{
    my %old = map { $_ => 1 } $apache->workers;
    $apache->restart('graceful');
    wait_until(sub { !grep { $old{$_} } $apache->workers }, 20,
        'the old workers to go');
}

sub empty
{
    spew($gate, '');
    $_->response for @_;
    wait_until(sub {
        my $auto = $apache->status_auto;
        $auto->{DBGuardHeld} + $auto->{DBGuardWaiting} == 0;
    }, 10, 'all to be gone');
}

subtest '?auto' => sub {
    my @requests = fill('/hold.php');
    my $text = auto_text();
    my @lines = split /\n/, $text;
    my @ours = grep { /DBGuard/ } @lines;
    is_deeply([grep { !/^DBGuard[A-Za-z0-9]+: \d+$/ } @ours], [],
        'every line is a name and a number');
    is_deeply([grep { /^$/ } @lines], [], 'no empty line');
    my %seen;
    for my $name (map { /^(.+?): / ? lc $1 : () } @lines) {
        $seen{ $name =~ s/[^a-z0-9]//gr }++;
    }
    is_deeply([grep { $seen{$_} > 1 } keys %seen], [], 'no name twice');
    my $auto = $apache->status_auto;
    is($auto->{"DBGuard$_"}, { Budget => 2, Held => 2, Waiting => 2,
        QueueLength => 2, DryRun => 0, Slots => 16, AdmittedTotal => 3,
        WaitedTotal => 0, RefusedTotal => 1, RefusedBudgetTotal => 1,
        ReleasedTotal => 1 }->{$_}, "DBGuard$_")
        for qw(Budget Held Waiting QueueLength DryRun Slots AdmittedTotal
            WaitedTotal RefusedTotal RefusedBudgetTotal ReleasedTotal);
    ok(exists $auto->{"DBGuard$_"}, "DBGuard$_") for sort keys %counters;
    cmp_ok($auto->{DBGuardHeldPeak}, '<=', 2, 'never above the budget');
    empty(@requests);
    $auto = $apache->status_auto;
    is($auto->{DBGuardWaitedTotal}, 2, 'those that waited');
    cmp_ok($auto->{DBGuardWaitMicrosecondsTotal}, '>', 0, '... for a while');
};

subtest 'whichever child answers' => sub {
    my @answers;
    # Each connection that stays open keeps a child.
    my @open = map {
        $apache->open_request('GET', '/server-status?auto', keepalive => 1);
    } 1 .. 4;
    is(scalar(keys %{ { map { our_lines($_->response->{body}) => 1 } @open } }),
        1, 'the same figures');
    # One that has just answered somebody else may still be closing.
    wait_until(sub { $apache->status_auto->{BusyWorkers} == 1 + 4 }, 10,
        'four children and the one that says so to be busy');
    pass('from four children');
    $_->close for @open;
};

# Are the tags of this piece of HTML balanced?
sub unbalanced
{
    my ($html) = @_;
    my @open;
    my %void = map { $_ => 1 } qw(hr br meta link input img);

    $html =~ s/<style>.*?<\/style>//sg;
    return 'a stray < or >' if $html =~ s/<[^<>]*>//gr =~ /[<>]/;
    while ($html =~ /<(\/?)(\w+)([^>]*)>/g) {
        my ($close, $name, $rest) = ($1, $2, $3);
        next if $void{$name} || $rest =~ /\/$/;
        if (!$close) {
            return "attributes of $name: $rest"
                if $rest !~ /^(?:\s+[\w:-]+="[^"]*")*\s*$/;
            push @open, $name;
        }
        elsif (($open[-1] // '') eq $name) { pop @open }
        else { return "</$name> inside @open" }
    }
    return "@open";
}

is(unbalanced('<p><b></p></b>'), '</p> inside p b', 'unbalanced() finds some');
is(unbalanced('<p>1 < 2</p>'), 'a stray < or >', '... and other things');

subtest 'the page' => sub {
    my @requests = fill(q{/hold.php/<script>alert(1)</script>"&'<!--});
    my $page = $apache->get('/server-status')->{body};
    my $html = section($page);
    ok($html, 'has our section');
    is(unbalanced($html), '', '... which is well formed');
    is(scalar(() = $page =~ /\bid="dbguard"/g), 1, '... /server-status#dbguard');
    like($html, qr/2 of 2 tokens out/, '... with the tokens');
    like($html, qr/2 of 2 waiting places/, '... the queue');
    like($html, qr/<svg viewBox="[-\d ]+" role="img" aria-label="[^"]+">/,
        '... a picture');
    like($html, qr/&lt;script&gt;/, '... and who holds');
    is(scalar(() = $html =~ /<td>holds/g), 2, '... two');
    is(scalar(() = $html =~ /<td>waits/g), 2, '... and who waits: two');
    unlike($html, qr/<script|<!--|javascript:|https?:|src=/i,
        'nothing of it is active or from elsewhere');
    like($page =~ s/\Q$html\E//r, qr{</body></html>\s*\z},
        'the rest of the page is there');
    my ($code, $text) = $apache->ctl('status');
    is($code, 0, 'dbguardctl');
    like($text, qr/<script>/, '... shows them as they are');
    empty(@requests);
};

subtest 'ExtendedStatus Off' => sub {
    my $names = our_lines(auto_text()) =~ s/: .*//mgr;
    $apache->set(config => "${config}ExtendedStatus Off\n");
    restart();
    my $text = auto_text();
    unlike($text, qr/^Total Accesses/m, 'it is off');
    is(our_lines($text) =~ s/: .*//mgr, $names, 'the same lines');
    is(unbalanced(section($apache->get('/server-status')->{body})), '',
        'the section of the page');
    $apache->set(config => $config);
    restart();
};

# The figures of ?auto, as dbguardctl shows them.
sub check_same
{
    my ($text, $auto) = @_;
    my $a = sub { $auto->{"DBGuard$_[0]"} };
    like($text, qr/\] @{[$a->('Held')]} of @{[$a->('Budget')]} out/, 'tokens');
    like($text, qr/waiting +@{[$a->('Waiting')]} of @{[$a->('QueueLength')]} /,
        'queue');
    for my $name (sort grep { !/Microseconds/ } keys %counters) {
        my $n = $a->($name);
        my $line = qr/^ *$n  \Q$counters{$name}\E$/m;
        $n ? like($text, $line, "$name: $n")
           : unlike($text, qr/\Q$counters{$name}\E$/m, "$name is zero");
    }
}

subtest 'dbguardctl status' => sub {
    my @requests = fill('/hold.php');
    my $auto = $apache->status_auto;
    my ($code, $text) = $apache->ctl('status');
    is($code, 0, 'exit code');
    check_same($text, $auto);
    is_deeply([grep { length > 80 && !m{/} } split /\n/, $text], [],
        '80 columns');
    is(scalar(() = $text =~ /^holds .* 127\.0\.0\.1 .*GET \/hold\.php$/mg), 2,
        'who holds');
    is(scalar(() = $text =~ /^waits .* 127\.0\.0\.1 .*GET \/hold\.php$/mg), 2,
        'who waits');
    like($text, qr/^waiting .*^holds .*^waits .*^the last minute.*^since the /ms,
        'who holds stands before the history');
    like($text, qr/DBGuardBudget +2\s+\Q@{[$apache->config_file]}\E:\d+$/m,
        'what is in effect, and why');
    my $parent = $apache->parent;
    like($text, qr/httpd $parent\b/, 'whose it is');

    # Every worker is stopped: nobody answers but dbguardctl.
    my @workers = $apache->workers;
    kill STOP => @workers;
    my $stuck = $apache->get_async('/server-status?auto');
    ($code, $text) = $apache->ctl('status');
    is($code, 0, 'every worker is stuck: exit code');
    check_same($text, $auto);
    ok(!$stuck->ready, '... while the status page hangs');
    kill CONT => @workers;
    is($stuck->response->{status}, 200, '... until they go on');
    empty(@requests);

    # Every worker is busy.
    unlink $gate;
    $apache->set(docroot_config => '');
    restart();
    my @busy = map { $apache->get_async("/hold.php?gate=$gate&$_") } 1 .. 8;
    ($code, $text) = $apache->ctl('status');
    is($code, 0, 'every worker is busy: exit code');
    like($text, qr/0 of 2 out/, '... nobody of them is guarded');
    spew($gate, '');
    $_->response for @busy;
    $apache->set(docroot_config => 'DBGuard On');
    restart();
};

# The rows of the table of endpoints, by name; in order, each with its place.
sub endpoints
{
    my ($text) = @_;
    my ($table) = $text =~ /^ needs .* endpoint\n((?:.+\n)+)/m
        or return {};
    my ($n, %rows) = (0);
    for (split /\n/, $table) {
        # A long name goes on in the next line.
        my ($needs, $holds, $rate, $peak, $hold, $refused, $name)
            = /^ *(\S+) +(\d+) +(\S+) +(\d+) +([\d.]+)\+? +(\d+)  (.*)/
            or next;
        $rows{$name} = { place => $n++, needs => $needs, holds => $holds,
            rate => $rate, peak => $peak, hold => $hold, refused => $refused };
    }
    return \%rows;
}

sub near { my ($a, $b, $by) = @_; abs($a - $b) <= $by }

# What has come is counted when its second is over.
sub next_second
{
    my $second = int clock_gettime(CLOCK_MONOTONIC);
    wait_until(sub { clock_gettime(CLOCK_MONOTONIC) >= $second + 1 }, 5,
        'the next second');
}

subtest 'endpoints' => sub {
    for (1 .. 8) {
        $apache->get('/fast.php') for 1 .. 5;
        $apache->get('/slow.php');
    }
    next_second();
    my ($code, $text) = $apache->ctl('status');
    my $rows = endpoints($text);
    my ($fast, $slow) = map { $rows->{"GET /$_.php"} } qw(fast slow);
    ok($fast && $slow, 'both are listed') or return diag($text);
    cmp_ok($slow->{place}, '<', $fast->{place}, 'what needs more is first');
    ok(near($fast->{rate}, 5 * $slow->{rate}, 0.04), 'five times as many')
        or diag("$fast->{rate} $slow->{rate}");
    # The server has been up for a minute at most.
    cmp_ok($slow->{rate}, '>=', 0.13, 'eight in a minute, or less');
    cmp_ok($slow->{hold}, '>=', 250, 'the hold of the slow one');
    cmp_ok($slow->{hold}, '<', 750, '... is plausible');
    cmp_ok($fast->{hold}, '>=', 5, 'the hold of the fast one');
    cmp_ok($fast->{hold}, '<', $slow->{hold} / 2, '... is plausible');
    ok(near($_->{needs}, $_->{rate} * $_->{hold} / 1e3,
        0.006 + 0.006 * $_->{hold} / 1e3), 'needs = rate x hold')
        for $slow, $fast;
    ok($slow->{peak} >= 1 && $slow->{peak} <= 4, 'peak of the slow one');

    my $page = section($apache->get('/server-status')->{body});
    is(unbalanced($page), '', 'the page is well formed');
    like($page, qr{<td class="w">GET /slow\.php</td>.*GET /fast\.php</td>}s,
        '... and has them in the same order');
    like($page, qr{<td\ class="w">GET\ /slow\.php</td>(?:<td\ class="n">[\d.]+
        </td>){6}<td><svg\ class="h"[^>]*aria-label="half\ of\ the\ holds\ up
        \ to\ [\d.]+\ s,\ 95\ %\ up\ to\ [\d.]+\ s">}x,
        '... with a picture');
};

subtest 'Little\'s law' => sub {
    my ($code, $text) = $apache->ctl('status');
    my $auto = $apache->status_auto;
    my $number = qr/([\d.]+)/;
    my $sentence = qr{at\ $number/s\ \(mean\)\ the\ budget\ of\ 2\ lasts\ up
        \ to\ a\ mean\ hold\ of\ $number\ s;\ at\ $number/s\ \(busiest\ second\)
        \ up\ to\ $number\ s;\ now\ $number\ s}xi;
    my $flat = $text =~ s/\s+/ /gr;
    my ($rate, $lasts, $peak, $lasts_peak, $now) = $flat =~ $sentence
        or return fail("no sentence in $text");
    my ($needs, $x, $y, $needs_peak, $z) = $flat =~ m{needed\ $number\ tokens
        \ of\ 2:\ $number/s\ x\ $number\ s\ \(Little's\ law,\ the\ last\ minute
        \);\ $number\ in\ its\ busiest\ second,\ when\ $number\ came}x;
    is("$x $y $z", "$rate $now $peak", 'the same figures twice');
    ok(near($needs, $rate * $now, 0.006 + 0.006 * $now + 0.001 * $rate),
        'needs');
    ok(near($lasts * $rate, 2, 0.006 * $lasts + 0.001 * $rate),
        'lasts at the mean rate');
    ok(near($lasts_peak * $peak, 2, 0.001 * $peak), '... at the peak');
    ok(near($needs_peak, $peak * $now, 0.01 + 0.001 * $peak), 'needs at peak');
    cmp_ok($peak, '>=', $rate, 'the busiest second');
    like(section($apache->get('/server-status')->{body}), $sentence,
        'the page says it, too');
    is($auto->{DBGuardHoldLimitPeakMicroseconds},
        int(2e6 / $auto->{DBGuardArrivedPeakSecond}), '?auto: limit at peak');
    cmp_ok($auto->{DBGuardHoldLimitMicroseconds}, '>=',
        $auto->{DBGuardHoldLimitPeakMicroseconds}, '... and at the mean');
    cmp_ok($auto->{DBGuardArrivedLastMinute}, '>=', 48, 'all that came');
    cmp_ok($auto->{DBGuardHoldExpectedMicroseconds}, '>', 0, '... and hold');
};

subtest 'no list is cut silently' => sub {
    $apache->get("/x.php/$_") for 'a' .. 'l';
    my ($code, $text) = $apache->ctl('status');
    my ($more) = $text =~ m{\.\.\. (\d+) more: status --all$}m;
    cmp_ok($more, '>', 0, 'some are not shown');
    for my $option (qw(--all -a)) {
        ($code, my $all) = $apache->ctl('status', $option);
        is($code, 0, $option);
        is(scalar(keys %{ endpoints($all) }),
            $more + keys %{ endpoints($text) },
            '... shows all that there are');
        like($all, qr{  GET /x\.php/$_$}m, "... /x.php/$_") for 'a' .. 'l';
        unlike($all, qr/more: status/, '... and no more');
    }
};

subtest 'who holds, in sum' => sub {
    my @requests = fill('/hold.php');
    my ($code, $text) = $apache->ctl('status');
    like($text, qr{^ +2 +2 +\d+\.\d{3}  GET /hold\.php$}m, 'by endpoint');
    like($text, qr{^ +2 +2 +\d+\.\d{3}  127\.0\.0\.1$}m, 'by client');
    my $page = section($apache->get('/server-status')->{body});
    for my $name ('GET /hold.php', '127.0.0.1') {
        ok(index($page, qq{<td class="w">$name</td><td class="n">2</td>}
            . '<td class="n">2</td>') >= 0, "the page: $name");
    }
    empty(@requests);
};

my ($mode, $group) = (stat $apache->scoreboard)[2, 5];
is(sprintf('%04o', $mode & 07777), '0640', 'for the server and its group');

subtest 'who may read it' => sub {
    plan skip_all => 'only root can be somebody else' if $> != 0;
    plan skip_all => 'no setpriv'
        if !grep { -x "$_/setpriv" } split /:/, $ENV{PATH};
    is(scalar(getgrgid($group)), 'www-data', 'its group');
    my $ctl = $stack->dir . '/dbguardctl';
    copy(dbguardctl(), $ctl);
    chmod 0755, $ctl;
    my $as = sub {
        return DBGuard::Process::run('setpriv', "--reuid=$_[0]",
            "--regid=$_[1]", '--clear-groups', $ctl, '-f',
            $apache->scoreboard, 'status');
    };
    my ($code, $text) = $as->('nobody', 'www-data');
    is($code, 0, 'the group reads') or diag($text);
    check_same($text, $apache->status_auto);
    ($code, $text) = $as->('nobody', 'nogroup');
    is($code, 1, 'others do not');
    like($text, qr/cannot be read: Permission denied/, '... and are told why');
};

subtest 'wrong usage' => sub {
    my $run = sub { DBGuard::Process::run(dbguardctl(), @_) };
    for (['nothing'], ['an unknown word', 'stats'], ['two words', qw(status x)],
        ['an unknown option', '-x', 'status'], ['no file', 'status', '-f'],
        ['a half option', '-f']) {
        my ($what, @arg) = @$_;
        my ($code, $text) = $run->(@arg);
        is($code, 2, "$what: 2");
        like($text, qr/usage: dbguardctl /, '... and how to use it');
    }
};

subtest 'help' => sub {
    my $monitor = builddir() . '/dbguard-monitor';
    for (['dbguardctl', dbguardctl()], ['dbguard-monitor', $monitor]) {
        my ($name, $program) = @$_;
        # Without what goes to standard error.
        my $run = sub { my $text = `$program $_[0] 2>/dev/null`; ($?, $text) };
        for my $option (qw(-h --help)) {
            my ($status, $text) = $run->($option);
            is($status, 0, "$name $option");
            like($text, qr/\Ausage: $name .*--help/s, '... says how');
            is_deeply([grep { length > 80 } split /\n/, $text], [],
                '... in 80 columns');
        }
        for my $option (qw(-V --version)) {
            my ($status, $text) = $run->($option);
            is($status, 0, "$name $option");
            like($text, qr/\A$name \d+\.\d+\.\d+\n\z/, '... is a version');
        }
        is(($run->('--unknown'))[0] >> 8, 2, "$name --unknown: 2");
    }
};

subtest 'nothing to read' => sub {
    my $dir = $stack->dir;
    my $board = slurp($apache->scoreboard);
    my $try = sub {
        my ($what, $content, $regex, @codes) = @_;
        spew("$dir/broken", $content) if defined $content;
        my ($code, $text) = DBGuard::Process::run(dbguardctl(), '-f',
            "$dir/broken", 'status');
        ok(scalar(grep { $code == $_ } @codes), "$what: @codes")
            or diag("$code $text");
        like($text, $regex, '... and why');
    };
    unlink "$dir/broken";
    $try->('no file', undef, qr/no scoreboard there.*DBGuardScoreboard/, 1);
    $try->('an empty file', '', qr/is empty/, 1);
    my $not = qr/is not a scoreboard|cannot be read|was made by another/;
    $try->('text', "hello\n" x 1000, $not, 1);
    $try->('zeros', "\0" x length $board, $not, 1);
    $try->('random bytes', join('', map { chr rand 256 } 1 .. 100_000), $not,
        1);
    $try->("its first $_ bytes", substr($board, 0, $_), $not, 1)
        for 1, 8, 20, 32, 100, 4096, length($board) - 1;
    $try->('an earlier layout', substr($board, 0, 8) . pack('L', 0)
        . substr($board, 12), $not, 1);
    $try->('another layout', substr($board, 0, 8) . pack('L', 99)
        . substr($board, 12), qr/another version/, 1);
    # Its head is right, and the rest is nonsense: whatever it shows, it ends.
    for my $byte ("\xff", "\x7f", "\0") {
        $try->(sprintf('0x%02x after the prefix', ord $byte),
            substr($board, 0, 32) . $byte x (length($board) - 32), qr/./,
            0, 1, 3);
    }
    mkdir "$dir/folder";
    my ($code, $text) = DBGuard::Process::run(dbguardctl(), '-f',
        "$dir/folder", 'status');
    is($code, 1, 'a folder: 1');
    like($text, qr/dbguardctl: \S+folder: /, '... and why');
};

subtest 'a server that is gone' => sub {
    my @requests = fill('/hold.php');
    my $auto = $apache->status_auto;
    copy($apache->scoreboard, $stack->dir . '/copy');
    my $parent = $apache->parent;
    $apache->kill;
    my ($code, $text) = $apache->ctl('status');
    is($code, 3, 'kill -9: 3');
    like($text, qr/httpd $parent\b.*not running/, '... and why');
    check_same($text, $auto);
    $apache->start;
    is(($apache->ctl('status'))[0], 0, 'a new server: 0');
    $apache->stop;
    ($code, $text) = $apache->ctl('status');
    is($code, 1, 'stopped: its file is gone');
    ($code, $text) = DBGuard::Process::run(dbguardctl(), '-f',
        $stack->dir . '/copy', 'status');
    is($code, 3, 'a copy of the file: 3');
    check_same($text, $auto);
};

done_testing;
