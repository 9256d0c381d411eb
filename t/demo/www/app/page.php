<?php
// The order page: about 2 ms of database.
require __DIR__ . '/lib/bootstrap.php';

$user = current_user();
$id = (int) ($_GET['id'] ?? 1);
$rows = '';
$result = db()->query('SELECT * FROM items WHERE order_id = ' . $id);
foreach ($result as $item) {
    $rows .= '<tr><td>' . htmlspecialchars($item['name']) . '<td>'
        . $item['pieces'];
}
// Stands for the queries that a grown order page has besides.
db()->query('SELECT SLEEP(0.0015)');
render("Order $id", "<table>$rows</table>"
    . "<p><a href=\"calc.php?id=$id\">Calculate the price</a>");
