# An HTTP/1.1 client made for tests: one request, one socket, nothing hidden.
#
# A request is sent when the object is made and its answer is read when it is
# asked for, so a test can have hundreds under way, or hang up on one.
#
# An answer is { status, reason, headers, body, seconds }; the headers' names
# are in lower case, repeated ones joined by ", ". A server that closes the
# connection without an answer gives status 0.
package DBGuard::Client;

use strict;
use warnings;
use Carp qw(croak);
use IO::Select;
use IO::Socket::INET;
use Time::HiRes qw(time);

# arg: port, method, path, headers => {}, body, keepalive (leave the
# connection open), socket (use this one, left open by an earlier request),
# address (one of 127.0.0.0/8 to come from, as another client would).
sub new
{
    my ($class, %arg) = @_;

    my $self = bless { %arg, buffer => '', begun => time }, $class;
    $self->{socket} //= IO::Socket::INET->new(
        PeerAddr => '127.0.0.1', PeerPort => $arg{port}, Timeout => 10,
        $arg{address} ? (LocalAddr => $arg{address}) : ())
        or croak "connect to port $arg{port}: $!";
    $self->{socket}->blocking(1);
    $self->send(request_text(%arg));
    return $self;
}

sub request_text
{
    my (%arg) = @_;
    my %headers = (
        'Host' => "127.0.0.1:$arg{port}",
        'Connection' => $arg{keepalive} ? 'keep-alive' : 'close',
        defined $arg{body} ? ('Content-Length' => length $arg{body}) : (),
        %{ $arg{headers} // {} },
    );
    return join "\r\n", "$arg{method} $arg{path} HTTP/1.1",
        (map { "$_: $headers{$_}" } sort keys %headers), '', $arg{body} // '';
}

# A server may answer and close before it has read everything.
sub send
{
    my ($self, $text) = @_;
    local $SIG{PIPE} = 'IGNORE';
    while (length $text) {
        my $n = syswrite $self->{socket}, $text or return;
        substr $text, 0, $n, '';
    }
}

sub socket { $_[0]{socket} }

# Hangs up.
sub close
{
    my ($self) = @_;
    close $self->{socket};
}

# Has the whole answer arrived? Never blocks.
sub ready
{
    my ($self) = @_;
    $self->fill(0);
    return defined $self->{answer};
}

# The answer; dies when it is not complete within the time.
sub response
{
    my ($self, $timeout) = @_;
    $timeout //= 30;
    my $end = time + $timeout;

    while (!$self->{answer}) {
        my $left = $end - time;
        croak "no answer to $self->{method} $self->{path} within ${timeout}s"
            if $left <= 0;
        $self->fill($left);
    }
    return $self->{answer};
}

# Reads once, waiting at most so long: an answer may be without end.
sub fill
{
    my ($self, $timeout) = @_;

    return if $self->{answer}
        || !IO::Select->new($self->{socket})->can_read($timeout);
    my $n = sysread $self->{socket}, $self->{buffer}, 65536,
        length $self->{buffer};
    $self->parse(!$n);
}

# Sets the answer when the buffer holds all of it.
sub parse
{
    my ($self, $eof) = @_;

    $self->{buffer} =~ s/\AHTTP\/1\.1 1\d\d.*?\r\n\r\n//s;
    my ($head, $rest) = $self->{buffer} =~ /\A(HTTP\/.*?\r\n)\r\n(.*)\z/s;
    if (!defined $head) {
        $self->answer(0, 'no answer', {}, $self->{buffer}) if $eof;
        return;
    }
    my ($status, $reason) = $head =~ /\AHTTP\/\S+ (\d+) ?(.*?)\r\n/;
    my %headers;
    while ($head =~ /^([^:\r\n]+):[ \t]*(.*?)\r\n/mg) {
        my $name = lc $1;
        $headers{$name} = exists $headers{$name} ? "$headers{$name}, $2" : $2;
    }
    my $bodyless = $self->{method} eq 'HEAD' || $status =~ /^(204|304)$/;
    my ($done, $body) = $bodyless ? (1, '') : body_of($rest, $eof, %headers);
    $self->answer($status, $reason, \%headers, $body) if $done || $eof;
}

sub body_of
{
    my ($rest, $eof, %headers) = @_;

    if (($headers{'transfer-encoding'} // '') =~ /chunked/i) {
        my $body = '';
        while ($rest =~ /\G([0-9a-f]+)[^\r\n]*\r\n/gci) {
            my $length = hex $1;
            return (1, $body) if $length == 0;
            $body .= substr $rest, pos $rest, $length;
            last if pos($rest) + $length + 2 > length $rest;
            pos($rest) += $length + 2;
        }
        return (0, $body);
    }
    my $length = $headers{'content-length'};
    return ($eof, $rest) if !defined $length;
    return (length $rest >= $length, substr $rest, 0, $length);
}

sub answer
{
    my ($self, $status, $reason, $headers, $body) = @_;
    $self->{answer} = {
        status => $status, reason => $reason, headers => $headers,
        body => $body, seconds => time - $self->{begun},
    };
    CORE::close $self->{socket} if !$self->{keepalive};
}

1;
