<?php
// Called by the order page whenever a field changes; about 6 ms. In the
// incident the answer itself changed the field.
require __DIR__ . '/lib/bootstrap.php';

$user = current_user();
$id = (int) ($_GET['id'] ?? 1);
db()->query("UPDATE orders SET price = NULL WHERE id = $id");
// Stands for the checks that the change set off.
db()->query('SELECT SLEEP(0.005)');
header('Content-Type: application/json');
echo json_encode(['order' => $id, 'price' => null]), "\n";
