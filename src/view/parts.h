#ifndef DBGUARD_PARTS_H
#define DBGUARD_PARTS_H

/* What the files of the views share among themselves. */

#include "view.h"

/* The name of a class of the snapshot. */
const char *dbguard_view_class(const dbguard_snapshot_t *snapshot,
                               uint32_t class);

/* Did holds of it use to be half as long as those that are under way? */
int dbguard_view_is_slower(const dbguard_row_t *row);

/* Add what can be added up. */
void dbguard_view_add(dbguard_row_t *sum, const dbguard_row_t *row);

/* For a terminal: who holds and who waits, by endpoint and by client; what is
 * known of the endpoints; the classes. */
void dbguard_text_groups(const dbguard_view_t *view,
                         const dbguard_snapshot_t *snapshot);
void dbguard_text_endpoints(const dbguard_view_t *view,
                            const dbguard_snapshot_t *snapshot, int all);
void dbguard_text_classes(const dbguard_view_t *view,
                          const dbguard_snapshot_t *snapshot);

/* The same for the page. */
void dbguard_html_groups(const dbguard_view_t *view,
                         const dbguard_snapshot_t *snapshot);
void dbguard_html_endpoints(const dbguard_view_t *view,
                            const dbguard_snapshot_t *snapshot);
void dbguard_html_classes(const dbguard_view_t *view,
                          const dbguard_snapshot_t *snapshot);
/* What clients chose, harmless. */
void dbguard_html_escaped(const dbguard_view_t *view, const char *text);

#endif
