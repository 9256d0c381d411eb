# A bad configuration that comes by signal: httpd would end its parent, and all
# sites with it. Here the last good value stays in force, as figures and answers
# show, the log says so at level crit with file, line and value, and the next
# good configuration clears it.
use strict;
use warnings;
use FindBin;
use lib "$FindBin::Bin/lib";
use Test::More;
use DBGuard::Stack qw(slurp spew wait_until);

my $stack = DBGuard::Stack->new(apache => {
    workers => 4, php => 1,
    files => {
        'p.php' => '<?php echo $_SERVER["DBGUARD_VERDICT"] ?? "-";',
        'open/p.php' => '<?php echo $_SERVER["DBGUARD_VERDICT"] ?? "-";',
        'hold.php' => '<?php while (!file_exists($_GET["gate"])) usleep(5000);',
    },
});
my $apache = $stack->apache;
my $dir = $apache->dir;
my $config = $apache->config_file;
spew("$dir/conf/busy.html", 'own page');
spew("$dir/conf/busy.json", '"own json"');

my $good = <<'END';
DBGuardEngine On
DBGuardBudget 1
DBGuardQueue length=0 patience=1500ms
DBGuardRetryAfter min=4s max=4s
DBGuardScoreboard board
DBGuardReserve 2
DBGuardOutage admit
DBGuardLint off
DBGuardSnapshot every=20s
DBGuardClient session=sid ipv6-prefix=56 hold=50% wait=3
DBGuardClass reports max=1 patience=3s
END
my $answer
    = "DBGuardRefusal status=429 html=conf/busy.html json=conf/busy.json\n";
$good .= $answer;

my $bad = <<'END';
DBGuardEngine Onn
DBGuardBudget 1k
DBGuardQueue length=many patience=eternal
DBGuardRetryAfter min=9s max=5s
DBGuardScoreboard ${UNDEFINED}
DBGuardReserve 200%
DBGuardOutage maybe
DBGuardLint loud
DBGuardSnapshot every=0s file=${UNDEFINED}
DBGuardDatabase mysql://app@localhost
DBGuardPasswordFile ${UNDEFINED}
DBGuardClient session=, ipv6-prefix=16 hold=0 wait=x
DBGuardClass reports max=0
END
my %value = (
    'DBGuardEngine' => 'On', 'DBGuardBudget' => '1',
    'DBGuardQueue length' => '0', 'DBGuardQueue patience' => '1500ms',
    'DBGuardRetryAfter min' => '4s', 'DBGuardRetryAfter max' => '4s',
    'DBGuardScoreboard' => 'board', 'DBGuardReserve' => '2',
    'DBGuardOutage' => 'admit', 'DBGuardLint' => 'off',
    'DBGuardSnapshot every' => '20s', 'DBGuardSnapshot file' => 'none',
    'DBGuardDatabase' => 'none', 'DBGuardPasswordFile' => 'none',
    'DBGuardClient session' => 'sid', 'DBGuardClient ipv6-prefix' => '56',
    'DBGuardClient hold' => '50%', 'DBGuardClient wait' => '3',
    'DBGuardClass' => 'reports max=1 patience=3s',
);
my %refusal = (
    'DBGuardRefusal status' => '429', 'DBGuardRefusal html' => 'conf/busy.html',
    'DBGuardRefusal json' => 'conf/busy.json',
);

sub line_of
{
    my ($regex) = @_;
    my @lines = split /\n/, slurp($config);
    my ($found) = grep { $lines[$_] =~ $regex } 0 .. $#lines;
    return $found + 1;
}

# Restarts with a configuration and waits until nobody serves with the one
# before; returns what the log says from then on.
sub reload
{
    my ($how, %arg) = @_;
    my $before = length $apache->error_log;
    my $parent = $apache->parent;
    my %old = map { $_ => 1 } $apache->workers;
    $apache->set(%arg);
    $apache->restart($how);
    wait_until(sub { !grep { $old{$_} } $apache->workers }, 20,
        'the old workers to go');
    is($apache->parent, $parent, "the parent lives ($how)");
    return substr $apache->error_log, $before;
}

# The effective configuration in a piece of the log: hashes of value, valid and
# level, without DBGuard and those that match.
sub effective
{
    my ($log, $without) = @_;
    my (%value, %valid, %level);
    while ($log =~ /:(\w+)\].*?DBGUARD0002:\ effective:\ (.+?)\ =\ (.+?)
        (?:\ \(.*\))?,\ source:\ .+,\ valid:\ (\w+)$/mgx) {
        next if $2 eq 'DBGuard' || defined $without && $2 =~ $without;
        ($value{$2}, $valid{$2}, $level{$2}) = ($3, $4, $1);
    }
    return (\%value, \%valid, \%level);
}

my $gates = 0;

# What the guard does: budget 1, no queue, 429, its own page, Retry-After 4.
sub check_behaviour
{
    my $gate = "$dir/run/gate." . $gates++;
    my $auto = $apache->status_auto;
    is($auto->{DBGuardBudget}, 1, 'the budget');
    is($auto->{DBGuardQueueLength}, 0, 'the queue');
    my $holder = $apache->get_async("/hold.php?gate=$gate");
    wait_until(sub { $apache->status_auto->{DBGuardHeld} == 1 }, 10,
        'a holder');
    my $html = $apache->get('/p.php');
    my $json = $apache->get('/p.php', Accept => 'application/json');
    is($html->{status}, 429, 'refused, with its own status');
    is($html->{body}, 'own page', '... its own page');
    is($json->{body}, '"own json"', '... its own JSON');
    is($html->{headers}{'retry-after'}, 4, '... its Retry-After');
    spew($gate, '');
    is($holder->response->{status}, 200, 'the holder');
    is($apache->get('/p.php')->{body}, 'admitted', 'admitted afterwards');
}

$apache->set(config => $good, docroot_config => 'DBGuard On');
$apache->start;
my $inode = (stat "$dir/run/board")[1];
subtest 'as configured' => \&check_behaviour;

for my $how (qw(graceful hard)) {
    subtest "every setting is bad ($how)" => sub {
        my $log = reload($how, config => "$bad$answer");
        my %shown = (
            DBGuardEngine => 'Onn', DBGuardBudget => '1k',
            DBGuardQueue => 'many', DBGuardRetryAfter => '9s',
            DBGuardScoreboard => '${UNDEFINED}', DBGuardReserve => '200%',
            DBGuardOutage => 'maybe', DBGuardLint => 'loud',
            DBGuardSnapshot => '0s', DBGuardDatabase => 'mysql://',
            DBGuardPasswordFile => '${UNDEFINED}',
            DBGuardClient => ',', DBGuardClass => '0',
        );
        for my $name (sort keys %shown) {
            my $where = "$config:" . line_of(qr/^$name /);
            my ($line) = $log =~ /^(.*:crit\].*\Q$where\E:.*)$/m;
            like($line // $log, qr/\b$name\b.*'[^']*\Q$shown{$name}\E/,
                "$name: crit, file, line and value");
        }
        my ($value, $valid, $level) = effective($log, qr/Refusal/);
        is_deeply($value, \%value, 'the last good values are in effect');
        is_deeply($valid, { map { $_ => 'no' } keys %value }, 'valid: no');
        is_deeply($level, { map { $_ => 'crit' } keys %value }, '... at crit');
        check_behaviour();
        is((stat "$dir/run/board")[1], $inode, 'the same scoreboard');
        is_deeply([grep { /UNDEFINED/ } glob "$dir/run/*"], [],
            '... and no other');
        isnt(($apache->configtest)[0], 0, 'a configtest still fails');
    };

    subtest "DBGuardRefusal is bad ($how)" => sub {
        reload($how, config => $good);
        my $log = reload($how, config => $good =~ s/^DBGuardRefusal.*//mr
            . "DBGuardRefusal status=42 html=conf/nowhere.html json=conf\n");
        my $where = "$config:" . line_of(qr/^DBGuardRefusal/);
        like($log, qr/:crit\].*\Q$where\E:.*DBGuardRefusal.*'42'/,
            'crit, file, line and value');
        my ($value, $valid, $level) = effective($log, qr/^(?!DBGuardRefusal)/);
        is_deeply($value, \%refusal, 'the last good values are in effect');
        is_deeply($valid, { map { $_ => 'no' } keys %refusal }, 'valid: no');
        is_deeply($level, { map { $_ => 'crit' } keys %refusal },
            '... at crit');
        check_behaviour();
    };

    subtest "DBGuardRefusal without a word ($how)" => sub {
        reload($how, config => $good);
        my $log = reload($how, config => $good =~ s/^DBGuardRefusal\K.*//mr);
        my ($value, $valid) = effective($log, qr/^(?!DBGuardRefusal)/);
        is_deeply($value, \%refusal, 'the last good values are in effect');
        is_deeply($valid, { map { $_ => 'no' } keys %refusal }, 'valid: no');
        check_behaviour();
    };
}

# Each virtual host goes back to its own, wherever it stands now.
subtest 'DBGuardRefusal of virtual hosts' => sub {
    my $port = $apache->port;
    spew("$dir/conf/$_.html", "page of $_") for qw(one two);
    my $hosts = sub {
        return join '', map { <<"END" } @_;
<VirtualHost *:$port>
DBGuardRefusal $_->[1]
ServerName $_->[0]
</VirtualHost>
END
    };
    my $pages = sub {
        my $gate = "$dir/run/gate." . $gates++;
        my $holder = $apache->get_async("/hold.php?gate=$gate");
        wait_until(sub { $apache->status_auto->{DBGuardHeld} == 1 }, 10,
            'a holder');
        my @bodies = map { $apache->get('/p.php', Host => $_)->{body} }
            qw(first one two);
        spew($gate, '');
        $holder->response;
        return @bodies;
    };
    my @good = (['first', 'status=429'], ['one', 'html=conf/one.html'],
        ['two', 'html=conf/two.html']);
    my @bad = (['first', 'status=429'], ['one', 'html=conf/nowhere.html'],
        ['two', 'html=conf/nowhere.html']);
    reload('graceful', config => $good . $hosts->(@good));
    is_deeply([$pages->()], ['own page', 'page of one', 'page of two'],
        'as configured');
    reload('graceful', config => "# a line more\n$good" . $hosts->(@bad));
    is_deeply([$pages->()], ['own page', 'page of one', 'page of two'],
        'all moved by a line');
    reload('graceful', config => $good . $hosts->(@bad[0, 2, 1]));
    is_deeply([$pages->()], ['own page', 'page of one', 'page of two'],
        'in another order');
    unlink map { "$dir/conf/$_.html" } qw(one two);
    reload('graceful', config => $good . $hosts->(@good));
    is_deeply([$pages->()], ['own page', 'page of one', 'page of two'],
        'their files are gone');
};

subtest 'twice in a row, and one at a time' => sub {
    my @lines = split /\n/, $good;
    for my $i (1, 2) {
        my @mixed = @lines;
        $mixed[$i] = (split /\n/, $bad)[$i];
        my ($value, $valid) = effective(
            reload('graceful', config => join "\n", @mixed));
        is_deeply($value, { %value, %refusal }, "values, with $mixed[$i]");
        my ($name) = split ' ', $mixed[$i];
        is_deeply([grep { $valid->{$_} eq 'no' } sort keys %$valid],
            [grep { /^$name\b/ } sort keys %value], '... only it is not valid');
    }
};

# Of several words the good ones count, unless it cannot be told which is bad.
subtest 'some words of a line are bad' => sub {
    my @queue = ('DBGuardQueue length', 'DBGuardQueue patience');
    my @retry = ('DBGuardRetryAfter min', 'DBGuardRetryAfter max');
    for (['DBGuardQueue length=many patience=9s', [$queue[0]],
            { $queue[1] => '9s' }],
        ['DBGuardQueue patience=eternal length=3', [$queue[1]],
            { $queue[0] => 3 }],
        ['DBGuardQueue length=3 patient=9s', \@queue, {}],
        ['DBGuardQueue length=3 "patience=9s', \@queue, {}],
        ['DBGuardSnapshot every=0s file=log/shots',
            ['DBGuardSnapshot every'], { 'DBGuardSnapshot file' =>
                'log/shots' }],
        ['DBGuardSnapshot file=x "every=5s', ['DBGuardSnapshot every',
            'DBGuardSnapshot file'], {}],
        ['DBGuardRetryAfter min=1.5s max=9s', [$retry[0]],
            { $retry[1] => '9s' }],
        # Both go back: this max is below the min that stays.
        ['DBGuardRetryAfter min=1.5s max=3s', \@retry, {}]) {
        my ($line, $bad, $new) = @$_;
        my ($name) = split ' ', $line;
        reload('graceful', config => $good);
        my $log = reload('graceful', config => $good =~ s/^$name .*/$line/mr);
        my ($value, $valid) = effective($log);
        is_deeply($value, { %value, %refusal, %$new }, $line);
        is_deeply([sort grep { $valid->{$_} eq 'no' } keys %$valid],
            [sort @$bad], '... only what is bad is not valid');
    }
};

subtest 'corrected' => sub {
    my $log = reload('graceful', config => $good =~ s/Budget 1/Budget 3/r);
    my ($value, $valid) = effective($log);
    is_deeply($value, { %value, %refusal, DBGuardBudget => 3 },
        'the new values');
    is_deeply([grep { $_ ne 'yes' } values %$valid], [], 'valid: yes');
    unlike($log, qr/dbguard:crit/, 'nothing at level crit');
    is($apache->status_auto->{DBGuardBudget}, 3, 'in force');
};

subtest 'wrong places' => sub {
    my $log = reload('graceful', config => $good . <<"END");
<VirtualHost *:1>
DBGuardBudget 8
DBGuardEngine Off
</VirtualHost>
<Directory $dir/www>
DBGuardQueue length=9
DBGuardRefusal status=500
DBGuardRetryAfter min=1s
DBGuardScoreboard elsewhere
</Directory>
<Directory $dir/www/open>
<Limit GET>
DBGuard Off
</Limit>
</Directory>
END
    for my $name (qw(DBGuardBudget DBGuardEngine DBGuardQueue DBGuardRefusal
        DBGuardRetryAfter DBGuardScoreboard DBGuard)) {
        like($log, qr/dbguard:crit.*\Q$config\E:\d+:.* $name cannot occur/,
            "$name: crit");
    }
    my ($value, $valid) = effective($log);
    is_deeply($value, { %value, %refusal }, 'they change nothing');
    check_behaviour();
    is($apache->get('/open/p.php')->{body}, 'admitted',
        'what a misplaced DBGuard applies to is guarded');
};

subtest 'a DBGuard that cannot be read guards' => sub {
    reload('graceful', config => $good, docroot_config => 'DBGuard Off');
    is($apache->get('/p.php')->{body}, '-', 'not guarded');
    for my $how (qw(graceful hard)) {
        my $log = reload($how, docroot_config => 'DBGuard Onn');
        my $line = line_of(qr/^DBGuard Onn/);
        like($log, qr/dbguard:crit.*\Q$config\E:$line:.*DBGuard: 'Onn'/,
            'crit, file, line, value');
        like($log, qr/:crit\].*effective: DBGuard = .* valid: no$/m,
            'valid: no');
        is($apache->get('/p.php')->{body}, 'admitted', 'guarded');
    }
    my $log = reload('graceful', docroot_config => 'DBGuard Off');
    is($apache->get('/p.php')->{body}, '-', 'corrected');
    like($log, qr/effective: DBGuard = .* valid: yes$/m, 'valid: yes');
};

subtest 'classes are one value' => sub {
    my $two = "DBGuardEngine On\nDBGuardBudget 6\nDBGuardClass a min=2 max=3\n"
        . "DBGuardClass b min=50%\n";
    my $shown = sub {
        return [$_[0] =~ /:(\w+)\].*effective:\ DBGuardClass\ =\ (.*?)
            (?:\ \(.*\))?,\ source:\ .*,\ valid:\ (\w+)$/mgx];
    };
    my $kept = [map { ('crit', $_, 'no') } 'a min=2 max=3', 'b min=50%'];
    is_deeply($shown->(reload('graceful', config => $two,
        docroot_config => 'DBGuard a')),
        [map { ('notice', $_, 'yes') } 'a min=2 max=3', 'b min=50%'], 'two');

    for my $case (
        ['a value', "DBGuardClass a min=3 max=3\nDBGuardClass b min=x\n",
            qr/^DBGuardClass b/, qr/DBGUARD0012: .*DBGuardClass min: 'x'/],
        ['a name', "DBGuardClass a min=1\nDBGuardClass 2nd\n",
            qr/^DBGuardClass 2nd/, qr/DBGUARD0012: .*'2nd'/],
        ['one twice', "DBGuardClass a min=1\nDBGuardClass a\n",
            qr/^DBGuardClass a$/, qr/DBGUARD0012: .*defines it already/],
        ['minimums above the budget',
            "DBGuardClass a min=4\nDBGuardClass b min=50%\n",
            qr/^DBGuardClass b/, qr/DBGUARD0044: .*7 tokens.*is 6;.*they were/],
    ) {
        my ($what, $lines, $line, $said) = @$case;
        my $log = reload('graceful',
            config => "DBGuardEngine On\nDBGuardBudget 6\n$lines");
        my $at = line_of($line);
        my ($crit) = $log =~ /^(.*:crit\].*\Q$config\E:$at: .*)$/m;
        like($crit // $log, $said, "$what: crit, file, line, and what");
        is_deeply($shown->($log), $kept, '... all are as they were');
        is($apache->get('/p.php')->{body}, 'admitted', '... and guarded');
    }

    my $log = reload('graceful', config => $two =~ s/Budget 6/Budget 2/r);
    like($log, qr/:crit\].*DBGUARD0044: .*no class has a minimum until/,
        'a budget that is too small for the old ones as well');
    is_deeply($shown->($log), [map { ('crit', $_, 'no') } 'a max=3', 'b'],
        '... takes their minimums');

    $log = reload('graceful', config => $two, docroot_config => 'DBGuard c');
    like($log, qr/:crit\].*DBGuard: 'c' is not .*guarded, in no class until/,
        'a class that is not there');
    my $lines = () = $apache->access_entries;
    is($apache->get('/p.php')->{body}, 'admitted', '... guards');
    wait_until(sub { (() = $apache->access_entries) > $lines }, 10,
        'its line in the log');
    my $class = ($apache->access_entries)[-1]{class};
    is($class, 'default', '... in no class');

    $log = reload('graceful', config => "DBGuardEngine On\nDBGuardBudget 6\n",
        docroot_config => 'DBGuard On');
    is_deeply($shown->($log), [], 'all gone');
    $log = reload('graceful', config => "DBGuardEngine On\nDBGuardBudget 6\n"
        . "DBGuardClass c max=0\n", docroot_config => 'DBGuard c');
    is_deeply($shown->($log), ['crit', 'none', 'no'], 'none, and a bad one');
    is($apache->get('/p.php')->{body}, 'admitted', '... guards');
};

subtest 'the engine is switched off and on' => sub {
    reload('graceful', config => 'DBGuardEngine Off',
        docroot_config => 'DBGuard On');
    is($apache->get('/p.php')->{body}, '-', 'Off');
    my $log = reload('graceful', config => $good =~ s/Engine On/Engine Offf/r);
    like($log, qr/dbguard:crit.*'Offf'/, 'a bad word after Off');
    is($apache->get('/p.php')->{body}, '-', '... leaves it off');
    reload('graceful', config => $good);
    check_behaviour();
};

is((stat "$dir/run/board")[1], $inode, 'one scoreboard from first to last');
$apache->stop;
ok(!-e "$dir/run/board", '... which is gone in the end');

subtest 'the module is taken out' => sub {
    $apache->set(config => $good, docroot_config => 'DBGuard On');
    $apache->start;
    my $file = "$dir/run/board";
    my $ctl = sub {
        DBGuard::Process::run(DBGuard::Stack::dbguardctl(), '-f', $file,
            'status');
    };
    my ($code, $text) = $ctl->();
    is($code, 0, 'with it: exit code 0');
    my $gate = "$dir/run/gate." . $gates++;
    my $holder = $apache->get_async("/hold.php?gate=$gate");
    wait_until(sub { ($ctl->())[1] =~ /^holds /m }, 10, 'a holder');

    $apache->set(guard => 0, config => '', docroot_config => '');
    $apache->restart('graceful');
    ($code, $text) = $ctl->();
    is($code, 3, 'without it: exit code 3');
    like($text, qr/WITHOUT mod_dbguard.*NOTHING IS GUARDED/, '... and why');
    like($text, qr/^holds /m, 'who still holds is shown');
    unlike($text, qr/^  DBGuardBudget /m, '... no setting is in force');
    spew($gate, '');
    is($holder->response->{status}, 200, 'the holder ends');
    wait_until(sub { ($ctl->())[1] !~ /^holds /m }, 10, 'its token');

    $apache->set(guard => 1, config => $good, docroot_config => 'DBGuard On');
    $apache->restart('graceful');
    ($code, $text) = $ctl->();
    is($code, 0, 'with it again: exit code 0');
    like($text, qr/^  DBGuardBudget +1\b/m, '... its settings are in force');
    check_behaviour();
    is(($apache->stop // 0) & 127, 0, 'an orderly end');
};

# Whoever looks in the middle of a reload sees no guard that is off.
subtest 'looks in many reloads' => sub {
    $apache->set(config => $good, docroot_config => 'DBGuard On');
    $apache->start;
    my (%codes, %engines);
    for (1 .. 5) {
        my $before = $apache->generations;
        $apache->signal('USR1');
        wait_until(sub {
            my ($code, $text) = DBGuard::Process::run(
                DBGuard::Stack::dbguardctl(), '-f', "$dir/run/board", 'status');
            $codes{$code}++;
            $engines{off}++ if $text =~ /NOTHING IS GUARDED/;
            $apache->generations > $before;
        }, 20, 'a reload');
    }
    is_deeply([keys %codes], [0], 'exit code 0');
    is($engines{off}, undef, '... and never off');
    $apache->stop;
};

subtest 'a bad value in the first start after Off' => sub {
    $apache->set(config => 'DBGuardBudget 5');
    $apache->start;
    my $log = reload('graceful', config => "DBGuardEngine On\nDBGuardBudget x");
    my ($value, $valid) = effective($log);
    is($value->{DBGuardBudget}, 5, 'the value of the configuration before');
    is($valid->{DBGuardBudget}, 'no', '... and not valid');
    $apache->stop;
};

done_testing;
