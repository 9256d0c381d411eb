# A test of several topics, each with servers of its own.
#
#     topic 'what it is about' => sub {
#         my $stack = ends_with_topic(DBGuard::Stack->start(...));
#         is_figures($stack->apache, 1, 0, 'one holds');
#     };
package DBGuard::Topic;

use strict;
use warnings;
use Exporter qw(import);
use Test::More;
use DBGuard::Process;

our @EXPORT_OK = qw(topic ends_with_topic is_figures);

my @stacks;

# A subtest: whatever it dies of, the others are run as well.
sub topic
{
    my ($name, $code) = @_;
    local $Test::Builder::Level = $Test::Builder::Level + 1;
    subtest $name => sub {
        eval { $code->(); 1 } or fail("it goes on: $@");
        $_->stop for splice @stacks;
    };
}

# Stops a stack with the topic that runs; returns it.
sub ends_with_topic
{
    my ($stack) = @_;
    push @stacks, $stack;
    return $stack;
}

# Waits until so many hold and wait.
sub is_figures
{
    my ($apache, $held, $waiting, $what) = @_;
    local $Test::Builder::Level = $Test::Builder::Level + 1;
    my $s;
    DBGuard::Process::wait_until(sub {
        $s = $apache->status_auto;
        $s->{DBGuardHeld} == $held && $s->{DBGuardWaiting} == $waiting;
    }, 10, sub { "$held to hold and $waiting to wait ($what); it is "
        . "$s->{DBGuardHeld} and $s->{DBGuardWaiting}" });
    return pass("$held hold, $waiting wait: $what");
}

1;
