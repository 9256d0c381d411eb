<?php
// Waits for an external system, whose time the plan has drawn (us), with an open
// connection that nobody uses meanwhile.
require __DIR__ . '/db.php';
work(function ($db) {
    $db->query('SELECT 1');
    usleep((int) $_GET['us']);
});
