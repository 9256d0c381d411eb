<?php
// What the looping tab calls: 0.5 ms of database.
require __DIR__ . '/serve.php';

serve(fn (mysqli $db) => $db->query('SELECT SLEEP(0.0005)'));
