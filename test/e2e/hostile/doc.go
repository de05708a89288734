// Package hostile tests the damage that callers with a key can do to a real node and its
// sandboxes with excessive requests: files larger than disks, archives that
// grow, crowds of watchers. All are refused with a reason, other callers are served
// meanwhile, and nothing is left afterwards.
package hostile
