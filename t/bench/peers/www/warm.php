<?php
// Sent once to each worker before the load, so that none meets PHP and the
// database for the first time while it is measured. One at a time connects, and
// each stays until all the others are busy too. Not in a limited place.
require 'db.php';

$begun = microtime(true);
$turn = fopen(__FILE__, 'r');
flock($turn, LOCK_EX);
$db = db();
$db->query('SELECT SLEEP(0)');
$db->close();
flock($turn, LOCK_UN);
usleep(max(0, (int) (1e6 * ($begun + 1.5 - microtime(true)))));
header('Content-Length: 3');
echo "ok\n";
