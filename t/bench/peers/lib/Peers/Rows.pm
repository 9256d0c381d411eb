# The peers: what each row of the tables starts, and how it is configured.
#
# Invariants:
#  - All have the same database, the same Apache with the same application, and
#    nothing of an earlier scenario: each starts afresh.
#  - Every worker has served PHP once, and connected to the database once,
#    before start() returns.
package Peers::Rows;

use strict;
use warnings;
use Exporter qw(import);
use File::Basename qw(dirname);
use IO::Socket::INET;
use List::Util qw(first);
use DBGuard::Stack qw(wait_until slurp spew builddir);

our @EXPORT_OK = qw(@rows WORKERS CONNECTIONS BUDGET);

use constant { WORKERS => 192, CONNECTIONS => 24, BUDGET => 20 };

our @rows = (
    { name => 'alone', title => 'Apache alone' },
    { name => 'workers', title => 'MaxRequestWorkers ' . BUDGET,
        workers => BUDGET },
    { name => 'qos', title => 'mod_qos, limit ' . BUDGET, config => \&qos,
        needs => \&qos_module, package => 'libapache2-mod-qos' },
    { name => 'haproxy', title => 'HAProxy, maxconn ' . BUDGET
        . ', queue 8 s', haproxy => '',
        needs => \&haproxy, package => 'haproxy' },
    { name => 'haproxy-first', title => 'HAProxy, pages first by hand',
        haproxy => 'http-request set-priority-class int(-1)'
            . ' if { path /app/page.php }',
        needs => \&haproxy, package => 'haproxy' },
    { name => 'guard', title => 'mod_dbguard', config => \&guard },
);

# Most of its text lies beside this folder.
my $www = dirname(__FILE__) . '/../../www';

# More may wait for a worker than httpd's own 511, so that no row fails by what
# the kernel drops before anybody has seen it.
use constant BASE => "ListenBacklog 4096\n";

sub guard
{
    return <<"END";
DBGuardEngine On
DBGuardBudget @{[BUDGET]}
<Directory \${DOCROOT}/app>
DBGuard On
</Directory>
END
}

sub qos_module
{
    return first { -e } DBGuard::Apache::apxs('LIBEXECDIR') . '/mod_qos.so';
}

# Debian's module does not say that it needs this library.
sub qos
{
    my $pcre = first { -e } glob '/usr/lib/*/libpcre.so.3';
    return ($pcre ? "LoadFile $pcre\n" : '')
        . 'LoadModule qos_module ' . qos_module() . "\n"
        . 'QS_LocRequestLimit /app ' . BUDGET . "\n";
}

sub haproxy
{
    return first { -x } map { "$_/haproxy" } split(/:/, $ENV{PATH}),
        '/usr/sbin';
}

# Without http-server-close each request would leave an idle connection behind,
# and with it a busy worker of a prefork server, for five seconds.
sub haproxy_config
{
    my ($front, $behind, $first) = @_;
    return <<"END";
global
    maxconn 5000
defaults
    mode http
    option http-server-close
    timeout connect 5s
    timeout client 30s
    timeout server 30s
    timeout queue 8s
frontend site
    bind 127.0.0.1:$front
    $first
    use_backend php if { path_beg /app/ }
    default_backend files
backend php
    server apache 127.0.0.1:$behind maxconn @{[BUDGET]}
backend files
    server apache 127.0.0.1:$behind
END
}

# What is missing for these rows: names of packages.
sub missing
{
    my %missing = map { $_->{package} => 1 }
        grep { $_->{needs} && !$_->{needs}->() } @_;
    return sort keys %missing;
}

# { stack, port, haproxy }
sub start
{
    my ($row) = @_;
    my $run = { workers => $row->{workers} // WORKERS };

    $run->{stack} = DBGuard::Stack->start(
        db => { max_connections => CONNECTIONS },
        apache => {
            workers => $run->{workers}, php => 1, docroot => $www,
            guard => $row->{name} eq 'guard', log_level => 'warn',
            config => BASE . ($row->{config} ? $row->{config}->() : ''),
        });
    $run->{port} = $run->{stack}->apache->port;
    start_haproxy($run, $row->{haproxy}) if defined $row->{haproxy};
    return $run;
}

sub start_haproxy
{
    my ($run, $first) = @_;
    my $dir = $run->{stack}->dir;

    my $front = DBGuard::Stack::free_port();
    spew("$dir/haproxy.cfg", haproxy_config($front, $run->{port}, $first));
    $run->{haproxy} = DBGuard::Process->spawn(output => "$dir/haproxy.log",
        command => [haproxy(), '-db', '-f', "$dir/haproxy.cfg"]);
    $run->{port} = $front;
    wait_until(sub {
        die "HAProxy does not start:\n" . slurp("$dir/haproxy.log")
            if !$run->{haproxy}->alive;
        IO::Socket::INET->new(PeerAddr => '127.0.0.1', PeerPort => $front);
    }, 10, 'HAProxy to start');
}

sub stop
{
    my ($run) = @_;
    $run->{haproxy}->stop('TERM', 2) if $run->{haproxy};
    $run->{stack}->stop;
    DBGuard::Process::remove_now($run->{stack}->dir);
}

1;
