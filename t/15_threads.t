# The same promises under the threaded MPMs, with CGI scripts behind mod_cgid:
# the limit, waiting and handing over, the death of a child with many requests
# in it, restarts. And under HTTP/2, where one connection is many requests.
use strict;
use warnings;
use FindBin;
use lib "$FindBin::Bin/lib";
use Test::More;
use Time::HiRes qw(time sleep);
use DBGuard::Stack qw(wait_until slurp);
use DBGuard::Topic qw(is_figures);

# Runs for ?ms= milliseconds, or until the test opens ?gate=, and notes from
# when to when, and when it began.
my $script = "#!$^X\n" . <<'END';
use Time::HiRes qw(clock_gettime CLOCK_MONOTONIC);
my $begin = clock_gettime(CLOCK_MONOTONIC);
my $dir = "$ENV{DOCUMENT_ROOT}/../sessions";
my ($gate) = $ENV{QUERY_STRING} =~ /gate=(\w+)/;
my ($ms) = $ENV{QUERY_STRING} =~ /ms=(\d+)/;
my $end = $begin + ($gate ? 60 : ($ms // 0) / 1000);
open my $began, '>', "$dir/began.$gate" if $gate;
while (clock_gettime(CLOCK_MONOTONIC) < $end) {
    last if $gate && -e "$dir/gate.$gate";
    Time::HiRes::sleep 0.004;
}
open my $spans, '>>', "$dir/spans" or die;
syswrite $spans, "$begin " . clock_gettime(CLOCK_MONOTONIC) . "\n";
print "Content-Type: text/plain\n\nran\n";
END

my @stacks;

# A topic of its own: whatever it dies of, the others are tested as well.
sub topic
{
    my ($name, $code) = @_;
    subtest $name => sub {
        eval { $code->(); 1 } or fail("it goes on: $@");
    };
}

sub start
{
    my ($mpm, $config, %arg) = @_;
    my $stack = DBGuard::Stack->new(apache => {
        mpm => $mpm, cgi => 1, workers => 24, threads => 8,
        files => { 'run.cgi' => $script },
        config => $config, docroot_config => 'DBGuard On', %arg,
    });
    push @stacks, $stack;
    return $stack->start->apache;
}

sub config
{
    my ($budget, $queue) = @_;
    # More children than run at once: after a graceful restart those of the
    # old generation keep their places until they are done.
    return "ServerLimit 9\nDBGuardEngine On\nDBGuardBudget $budget\n"
        . "DBGuardQueue length=$queue patience=60s\n";
}

my $gates = 0;

# A request that runs until open_gate: [request, gate].
sub gated
{
    my ($apache) = @_;
    my $name = ++$gates;
    return [$apache->get_async("/run.cgi?gate=$name"), $name];
}

sub open_gate
{
    my ($apache, @gated) = @_;
    DBGuard::Stack::spew($apache->dir . "/sessions/gate.$_->[1]", '')
        for @gated;
}

# A token is given before mod_cgid has started the script; a restart of its
# daemon in between loses the request, whoever guards it.
sub wait_begun
{
    my ($apache, @gated) = @_;
    wait_until(sub {
        !grep { !-e $apache->dir . "/sessions/began.$_->[1]" } @gated;
    }, 10, 'the scripts to begin');
}

sub statuses { map { $_->[0]->response->{status} } @_ }

# The most that ran at once, and how many ran.
sub overlap
{
    my ($apache) = @_;
    my @spans = split /\n/, slurp($apache->dir . '/sessions/spans');
    my @events = sort { $a->[0] <=> $b->[0] || $a->[1] <=> $b->[1] }
        map { my ($begin, $end) = split; ([$begin, 1], [$end, -1]) } @spans;
    my ($now, $most) = (0, 0);
    for (@events) {
        $now += $_->[1];
        $most = $now if $now > $most;
    }
    return ($most, scalar @spans);
}

# Clients that each ask again as soon as they have an answer, until the code
# says stop. Returns how often each status came.
sub load
{
    my ($apache, $path, $clients, $stop) = @_;
    my (%count, $ending);
    my @open = map { $apache->get_async($path) } 1 .. $clients;

    while (my $one = shift @open) {
        $ending ||= $stop->(\%count);
        if ($one->ready) {
            $count{ $one->response->{status} }++;
            next if $ending;
            $one = $apache->get_async($path);
        }
        push @open, $one;
        sleep 0.0005;
    }
    return %count;
}

# Which child has how many requests in this state.
sub children
{
    my ($apache, $state) = @_;
    my %count;
    $count{$_}++ for ($apache->ctl('status'))[1] =~ /^$state +\S+ +(\d+)/mg;
    return %count;
}

sub is_whole
{
    my ($apache, $budget, $queue) = @_;
    my @all = map { gated($apache) } 1 .. $budget + $queue;
    is_figures($apache, $budget, $queue, 'the whole table can be used');
    open_gate($apache, @all);
    is_deeply([grep { $_ != 200 } statuses(@all)], [],
        '... and all are served');
    is_figures($apache, 0, 0, 'the end');
    is($apache->status_auto->{DBGuardRefusedBoardTotal}, 0, 'no slot is lost');
}

for my $mpm (qw(event worker)) {
    my $apache = start($mpm, config(4, 6));

    topic "$mpm: the limit" => sub {
        my %count = load($apache, '/run.cgi?ms=15', 14,
            sub { ($_[0]{200} // 0) >= 100 });
        my ($most, $ran) = overlap($apache);
        is_deeply([grep { !/^(200|503)$/ } keys %count], [],
            'nothing but 200 and 503');
        is($count{200}, $ran, 'every 200 ran');
        is($most, 4, 'never more than the budget at once');
        is_figures($apache, 0, 0, 'the end');
        my $status = $apache->status_auto;
        is($status->{DBGuardAdmittedTotal}, $ran, 'admitted: the 200s');
        is($status->{DBGuardReleasedTotal}, $ran, 'all came back');
        is($status->{DBGuardRefusedTotal}, $count{503} // 0,
            'refused: the 503s');
    };

    topic "$mpm: waiting and handing over" => sub {
        my @all = map { my $one = gated($apache);
            my $waiting = $_ > 4 ? $_ - 4 : 0;
            is_figures($apache, $_ - $waiting, $waiting, 'one more'); $one;
        } 1 .. 6;
        is($apache->get('/static.txt')->{status}, 200, 'a file is served');
        for my $next (4, 5) {
            my $one = shift @all;
            open_gate($apache, $one);
            is_deeply([statuses($one)], [200], 'one ends');
            is_figures($apache, 4, 5 - $next, 'the first in line has it');
        }
        $all[0][0]->close;
        open_gate($apache, @all);
        shift @all;
        is_deeply([grep { $_ != 200 } statuses(@all)], [], 'all are served');
        is_figures($apache, 0, 0, 'the end');
    };

    topic "$mpm: a graceful restart" => sub {
        unlink $apache->dir . '/sessions/spans';
        my @old = map { gated($apache) } 1 .. 4;
        is_figures($apache, 4, 0, 'four hold');
        wait_begun($apache, @old);
        push @old, map { gated($apache) } 1, 2;
        is_figures($apache, 4, 2, 'two wait');
        my @before = $apache->workers;
        $apache->restart('graceful');

        my @new = map { gated($apache) } 1 .. 4;
        is_figures($apache, 4, 6, 'new ones wait behind them');
        is($apache->get('/run.cgi')->{status}, 503, 'a further one is refused');
        open_gate($apache, @old);
        is_deeply([grep { $_ != 200 } statuses(@old)], [],
            'all old ones served');
        is_figures($apache, 4, 0, 'then the new ones have the tokens');
        wait_until(sub { !grep { kill 0 => $_ } @before }, 10,
            'the old children to end');
        is_figures($apache, 4, 0, 'their end changes nothing');
        open_gate($apache, @new);
        is_deeply([grep { $_ != 200 } statuses(@new)], [],
            'all new ones served');
        is((overlap($apache))[0], 4, 'never more than the budget at once');
        is_whole($apache, 4, 6);
    };

    topic "$mpm: kill -9 of a child with many requests" => sub {
        my @all = map { gated($apache) } 1 .. 10;
        is_figures($apache, 4, 6, 'four hold, six wait');
        my %holds = children($apache, 'holds');
        my %waits = children($apache, 'waits');
        my $total = sub { ($holds{$_[0]} // 0) + ($waits{$_[0]} // 0) };
        my ($pid) = sort { $total->($b) <=> $total->($a) } keys %holds;
        my $left = 10 - $total->($pid);
        my $held = $left < 4 ? $left : 4;
        my $reaped = $apache->status_auto->{DBGuardReapedTotal};

        my $begin = time;
        kill KILL => $pid;
        is_figures($apache, $held, $left - $held, 'all it had is back');
        cmp_ok(time - $begin, '<', 2, '... within two seconds');
        diag sprintf '%s: %d held, %d waited in it', $mpm, $holds{$pid} // 0,
            $waits{$pid} // 0;
        is($apache->status_auto->{DBGuardReapedTotal} - $reaped,
            $total->($pid), 'so many were taken back');
        open_gate($apache, @all);
        my @statuses = statuses(@all);
        is(grep({ $_ == 200 } @statuses), $left, 'the others are served');
        is(grep({ $_ == 0 } @statuses), 10 - $left, 'the dead are not');
        is_figures($apache, 0, 0, 'the end');
        is_whole($apache, 4, 6);
    };

    topic "$mpm: a hard restart while requests wait" => sub {
        my @all = map { gated($apache) } 1 .. 4;
        wait_begun($apache, @all);
        push @all, map { gated($apache) } 1 .. 4;
        is_figures($apache, 4, 4, 'four hold, four wait');
        my $starts = $apache->generations;
        $apache->signal('HUP');
        ok(eval { wait_until(sub {
            ($apache->ctl('status'))[1] =~ /^waiting +0 of/m }, 4,
            'the waiting to go') }, 'who waits goes, before all scripts end');
        open_gate($apache, @all);
        wait_until(sub { $apache->generations > $starts }, 20, 'the restart');
        is_figures($apache, 0, 0, 'the end');
        is_whole($apache, 4, 6);
        is($apache->status_auto->{DBGuardRepairsTotal}, 0, 'no repairs');
        unlike($apache->error_log, qr/exit signal (?!Killed)/, 'no crash');
    };
    (pop @stacks)->stop;
    ok(!-e $apache->scoreboard, "$mpm: nothing is left");
}

# ---- HTTP/2

# As much of an HTTP/2 client as it takes to have many requests on one
# connection and to cancel single ones.
{
    package H2;

    use IO::Select;
    use IO::Socket::INET;

    sub new
    {
        my ($class, $port) = @_;
        my $self = bless { next => 1, buffer => '', streams => {} }, $class;
        $self->{socket} = IO::Socket::INET->new(PeerAddr => '127.0.0.1',
            PeerPort => $port) or die "connect: $!";
        syswrite $self->{socket}, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
        $self->frame(4, 0, 0, '');
        return $self;
    }

    sub frame
    {
        my ($self, $type, $flags, $stream, $payload) = @_;
        syswrite $self->{socket}, substr(pack('N', length $payload), 1)
            . pack('CCN', $type, $flags, $stream) . $payload;
    }

    # Starts a request and returns its stream.
    sub get
    {
        my ($self, $path) = @_;
        my $stream = $self->{next};
        my $literal = sub { chr($_[0]) . chr(length $_[1]) . $_[1] };

        $self->{next} += 2;
        # :method GET, :scheme http, :path, :authority, by HPACK's static table
        $self->frame(1, 5, $stream, "\x82\x86" . $literal->(4, $path)
            . $literal->(1, '127.0.0.1'));
        return $stream;
    }

    # RST_STREAM, CANCEL.
    sub cancel
    {
        my ($self, $stream) = @_;
        $self->frame(3, 0, $stream, pack 'N', 8);
    }

    # Reads what is there.
    sub pump
    {
        my ($self) = @_;
        while (IO::Select->new($self->{socket})->can_read(0)) {
            sysread $self->{socket}, $self->{buffer}, 65536,
                length $self->{buffer} or last;
        }
        while (length $self->{buffer} >= 9) {
            my ($high, $low, $type, $flags, $stream)
                = unpack 'CnCCN', $self->{buffer};
            my $length = ($high << 16) + $low;
            last if length $self->{buffer} < 9 + $length;
            my $payload = substr $self->{buffer}, 9, $length;
            substr $self->{buffer}, 0, 9 + $length, '';
            my $of = $self->{streams}{$stream} //= { body => '' };
            $of->{body} .= $payload if $type == 0;
            $of->{done} = 1 if $type <= 1 && $flags & 1 || $type == 3;
            $self->frame($type, 1, 0, $type == 6 ? $payload : "")
                if ($type == 4 || $type == 6) && !($flags & 1);
        }
    }

    # What was answered on the stream, or nothing before it was.
    sub body
    {
        my ($self, $stream) = @_;
        $self->pump;
        my $of = $self->{streams}{$stream};
        return $of && $of->{done} ? $of->{body} : undef;
    }

    sub close { close $_[0]{socket} }
}

sub h2_gated
{
    my ($connection) = @_;
    my $name = ++$gates;
    return [$connection->get("/run.cgi?gate=$name"), $name];
}

# ran, refused, or what else it is by now.
sub h2_answers
{
    my ($connection, @gated) = @_;
    return map {
        my $body = $connection->body($_->[0]);
        !defined $body ? 'nothing yet' : $body =~ /^ran$/ ? 'ran'
            : $body =~ /Busy/ ? 'refused' : "? $body";
    } @gated;
}

sub are_answered
{
    my ($connection, $gated, $answers, $what) = @_;
    my @is;
    eval { wait_until(sub { @is = h2_answers($connection, @$gated);
        "@is" eq "@$answers" }, 10, 'the answers') };
    is_deeply(\@is, $answers, $what);
}

SKIP: {
    skip 'mod_http2 is not there', 1
        if !-e DBGuard::Apache::apxs('LIBEXECDIR') . '/mod_http2.so';
    my $apache = start('event', config(2, 2), http2 => 1);
    my $figure = sub { $apache->status_auto->{"DBGuard$_[0]"} };

    topic 'HTTP/2: one connection, all verdicts' => sub {
        my $connection = H2->new($apache->port);
        my @all = map { h2_gated($connection) } 1, 2;
        is_figures($apache, 2, 0, 'two streams hold');
        push @all, map { h2_gated($connection) } 1, 2;
        is_figures($apache, 2, 2, 'two wait');
        my $refused = h2_gated($connection);
        are_answered($connection, [$refused], ['refused'], 'one is refused');
        are_answered($connection, [[$connection->get('/static.txt')]],
            ["? a static file\n"], 'a file is served');
        is_figures($apache, 2, 2, 'the others are as before');
        open_gate($apache, $all[1]);
        are_answered($connection, [@all[0, 1]], ['nothing yet', 'ran'],
            'one ends');
        is_figures($apache, 2, 1, 'one of the waiting has its token');
        open_gate($apache, @all);
        are_answered($connection, \@all, [('ran') x 4], 'all are served');
        is_figures($apache, 0, 0, 'the end');
        is($figure->('AdmittedTotal'), 4, 'four were admitted');
        is($figure->('RefusedTotal'), 1, 'one was refused');
    };

    topic 'HTTP/2: streams and connections that go away' => sub {
        my $connection = H2->new($apache->port);
        my @holders = map { h2_gated($connection) } 1, 2;
        is_figures($apache, 2, 0, 'two streams hold');
        my @waiters = map { h2_gated($connection) } 1, 2;
        is_figures($apache, 2, 2, 'two wait');
        my $aborted = $figure->('AbortedTotal');

        $connection->cancel($waiters[0][0]);
        is_figures($apache, 2, 1, 'one of the waiting is cancelled');
        is($figure->('AbortedTotal'), $aborted + 1, '... and counted');
        $connection->cancel($holders[0][0]);
        my $other = H2->new($apache->port);
        my $third = h2_gated($other);
        is_figures($apache, 2, 2, 'a cancelled one that runs keeps its token');
        my $fourth = h2_gated($other);
        are_answered($other, [$fourth], ['refused'], '... for a while');
        $connection->close;
        is_figures($apache, 2, 1, 'a connection goes, and who waits in it');
        open_gate($apache, @holders);
        is_figures($apache, 1, 0, 'the next one in line has a token');
        open_gate($apache, $third, @waiters);
        are_answered($other, [$third], ['ran'], 'the other one is served');
        is_figures($apache, 0, 0, 'the end');
        is($figure->('AbortedTotal'), $aborted + 2, 'two had been waiting');
    };

    topic 'HTTP/2: curl comes, waits and is killed' => sub {
        my ($code, $version) = DBGuard::Process::run('curl', '--version');
        return ok(1, 'no curl with HTTP/2 here') if $code != 0
            || $version !~ /HTTP2/;
        my @curl = ('curl', '-sS', '--http2-prior-knowledge', '-o', '/dev/null',
            '-w', '%{http_version} %{http_code}');
        is((DBGuard::Process::run(@curl, $apache->url('/run.cgi')))[1], '2 200',
            'admitted');
        my @all = map { gated($apache) } 1 .. 3;
        is_figures($apache, 2, 1, 'two hold, one waits');
        my $pid = fork // die "fork: $!";
        if (!$pid) {
            exec(@curl, $apache->url('/run.cgi')) or POSIX::_exit(127);
        }
        is_figures($apache, 2, 2, 'curl waits');
        is((DBGuard::Process::run(@curl, $apache->url('/run.cgi')))[1], '2 503',
            'another curl is refused');
        kill KILL => $pid;
        waitpid $pid, 0;
        is_figures($apache, 2, 1, 'killed: its place is free');
        open_gate($apache, @all);
        is_deeply([statuses(@all)], [200, 200, 200], 'the others are served');
        is_figures($apache, 0, 0, 'the end');
    };
    (pop @stacks)->stop;

    # mod_http2 has workers of its own, more than there are request threads.
    topic 'HTTP/2: more streams than request workers' => sub {
        my $apache = start('event', "DBGuardEngine On\nDBGuardBudget 20\n",
            http2 => 1, workers => 8);
        my $connection = H2->new($apache->port);
        my @all = map { h2_gated($connection) } 1 .. 16;
        # It starts with six. When one of them ends, a tenth of a second later
        # or more, it is ready for twice as many.
        is_figures($apache, 6, 0, 'some run at once');
        sleep 0.15;
        open_gate($apache, @all[0 .. 5]);
        wait_until(sub {
            my $status = $apache->status_auto;
            $status->{DBGuardHeld} > 8 || $status->{DBGuardRefusedTotal};
        }, 10, 'more than eight to run');
        open_gate($apache, @all);
        are_answered($connection, \@all, [('ran') x 16],
            'all are served: there are more tokens than streams');
        is($apache->status_auto->{DBGuardRefusedTotal}, 0, 'none was refused');
        is_figures($apache, 0, 0, 'the end');
    };
}

done_testing;
