// Package hostile tests what callers with a key can do to a real node and its
// sandboxes by asking for too much: files larger than disks, archives that
// grow, crowds of watchers. All is refused with a reason, others are served
// meanwhile, and nothing is left afterwards.
package hostile
