package store

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/idempotency"
)

// An eventLog is the event log in the database.
type eventLog struct{ db *DB }

// Events returns the event log.
func Events(db *DB) engi.EventLog { return eventLog{db} }

const (
	eventColumns = `seq, id, owner, subject, prev, type, time, actor, replay, data`
	appendEvent  = `INSERT INTO events (id, owner, subject, type, time, actor, replay, idempotency, fingerprint, data, prev)
	VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, coalesce((SELECT seq FROM events WHERE subject = ?3 ORDER BY prev DESC LIMIT 1), 0))
	RETURNING seq, prev`
	appendFirstEvent = `INSERT INTO events (id, owner, subject, type, time, actor, replay, idempotency, fingerprint, data, prev)
	VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, 0)`

	maxEventPage = 8 << 20 // maximum bytes of data in one list
	eventPage    = 256     // number of events that a follower reads at a time
)

var eventType = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9/._-]{0,127}$`)

// append adds an event in the transaction.
func (t *tx) append(ctx context.Context, s engi.EventSpec) (e engi.Event, err error) {
	defer engi.Annotate(&err, "append event %.140s", s.Type)
	if !eventType.MatchString(s.Type) {
		return e, engi.Errorf(engi.Invalid, "%.140q is not a type of event", s.Type).WithRemedy("use up to 128 letters, digits and /._-, beginning with a letter or a digit")
	}
	return t.add(ctx, s, false)
}

// A recorder is tx.record or tx.recordFirst.
type recorder = func(ctx context.Context, owner engi.Owner, subject, kind string, data any) error

// record appends an event for a change of a record.
func (t *tx) record(ctx context.Context, owner engi.Owner, subject, kind string, data any) error {
	return t.recordOf(ctx, owner, subject, kind, data, false)
}

// recordFirst appends the first event for a record that this transaction
// creates, which is faster than record.
func (t *tx) recordFirst(ctx context.Context, owner engi.Owner, subject, kind string, data any) error {
	return t.recordOf(ctx, owner, subject, kind, data, true)
}

func (t *tx) recordOf(ctx context.Context, owner engi.Owner, subject, kind string, data any, first bool) (err error) {
	defer engi.Annotate(&err, "append event %s", kind)
	raw, err := encode("event", data)
	if err != nil {
		return err
	}
	_, err = t.add(ctx, engi.EventSpec{Owner: owner, Subject: subject, Type: kind, Data: json.RawMessage(raw)}, first)
	return err
}

// add inserts an event; first says that its subject has no events yet.
func (t *tx) add(ctx context.Context, s engi.EventSpec, first bool) (_ engi.Event, err error) {
	e := engi.Event{
		ID: s.ID, Owner: s.Owner, Subject: s.Subject, Type: s.Type, Time: time.Now().UTC(),
		Actor: cmp.Or(s.Actor, engi.ActorOf(ctx)), Replay: s.Replay, Data: s.Data,
	}
	if e.ID == "" {
		e.ID = engi.NewEventID()
	}
	if e.Subject == "" {
		e.Subject, first = string(e.ID), s.Expect <= 0
	}
	if e.Data == nil {
		e.Data = json.RawMessage("{}")
	}
	if len(e.Data) > engi.MaxEventData {
		return e, engi.TooLarge("the data has %d bytes, the limit is %d", len(e.Data), engi.MaxEventData).WithRemedy("put it into a file or a volume and send its path")
	}
	args := []any{string(e.ID), string(e.Owner), e.Subject, e.Type, nanos(e.Time), e.Actor, string(e.Replay), s.Idempotency, s.Fingerprint, string(e.Data)}
	if first {
		res, err := t.run(ctx, appendFirstEvent, args...)
		if err != nil {
			return e, fault(ctx, err)
		}
		if e.Seq, err = res.LastInsertId(); err != nil {
			return e, fault(ctx, err)
		}
	} else if err := t.row(ctx, appendEvent, args...).Scan(&e.Seq, &e.Prev); err != nil {
		return e, fault(ctx, err)
	}
	if s.Expect != 0 && e.Prev != max(s.Expect, 0) {
		return e, engi.Errorf(engi.Conflict, "the last event about %s is %d, not %d", e.Subject, e.Prev, max(s.Expect, 0)).WithRemedy("read the events after this Seq, and try again")
	}
	t.events = append(t.events, e)
	return e, nil
}

// eventOf returns the event that an owner's request with an idempotency key appended.
func (db *DB) eventOf(ctx context.Context, owner engi.Owner, key string) (idempotency.Event, error) {
	missing := engi.Errorf(engi.NotFound, "there is no event of this idempotency key")
	return first(ctx, db.read, missing, func(row scanner) (e idempotency.Event, err error) {
		e.Event, err = scanEventAnd(row, &e.Fingerprint)
		return e, err
	}, `SELECT `+eventColumns+`, fingerprint FROM events WHERE owner = ? AND idempotency = ? AND idempotency <> ''`, owner, key)
}

// Append adds events.
func (l eventLog) Append(ctx context.Context, specs ...engi.EventSpec) (all []engi.Event, err error) {
	err = l.db.tx(ctx, func(t *tx) error {
		for _, s := range specs {
			if _, err := t.append(ctx, s); err != nil {
				return err
			}
		}
		all = t.events
		return nil
	})
	return all, err
}

func scanEvent(row scanner) (engi.Event, error) { return scanEventAnd(row) }

// scanEventAnd scans an event and the columns after it.
func scanEventAnd(row scanner, more ...any) (e engi.Event, err error) {
	var data string
	err = row.Scan(append([]any{&e.Seq, &e.ID, &e.Owner, &e.Subject, &e.Prev, &e.Type, (*stamp)(&e.Time), &e.Actor, &e.Replay, &data}, more...)...)
	e.Data = json.RawMessage(data)
	return e, err
}

// Get returns one event.
func (l eventLog) Get(ctx context.Context, viewer engi.Viewer, id engi.EventID) (engi.Event, error) {
	missing := engi.Errorf(engi.NotFound, "there is no event %.60q", id).WithRemedy("'engi events list' shows your events; old events are removed")
	return first(ctx, l.db.read, missing, scanEvent, `SELECT `+eventColumns+` FROM events WHERE id = ? AND (? = '*' OR owner = ?)`, string(id), string(viewer), string(viewer))
}

// conditions returns the SQL conditions of a filter.
func conditions(viewer engi.Viewer, f engi.EventFilter) (w where) {
	owned := `owner = ?`
	if f.Subject != "" {
		// Events of one subject have the same order by prev as by seq, and
		// there is an index on prev. The plus keeps SQLite from using the owner's index,
		// which would read all events of the owner.
		owned = `+owner = ?`
		w.and(true, `subject = ?`, f.Subject)
		w.and(f.After > 0, `prev >= coalesce((SELECT max(prev) FROM events WHERE subject = ? AND prev <= ?), 0)`, f.Subject, f.After)
		w.and(f.Before > 0, `prev < ?`, f.Before)
	}
	w.and(viewer != engi.Everyone, owned, string(viewer))
	w.and(f.Owner != "", owned, string(f.Owner))
	w.and(f.After > 0, `seq > ?`, f.After)
	w.and(f.Before > 0, `seq < ?`, f.Before)
	if len(f.Types) > 0 {
		var anyOf []string
		var args []any
		for _, t := range f.Types {
			if prefix, tree := strings.CutSuffix(t, "*"); tree {
				// Other characters could be wildcards of GLOB.
				anyOf, args = append(anyOf, `substr(type, 1, ?) = ?`), append(args, len(prefix), prefix)
			} else {
				anyOf, args = append(anyOf, `type = ?`), append(args, t)
			}
		}
		w.and(true, `(`+strings.Join(anyOf, ` OR `)+`)`, args...)
	}
	return w
}

// List returns the events that f selects.
func (l eventLog) List(ctx context.Context, viewer engi.Viewer, f engi.EventFilter) (_ []engi.Event, err error) {
	defer engi.Annotate(&err, "list events")
	if f.Limit <= 0 {
		f.Limit = 100
	}
	f.Limit = min(f.Limit, 1000)
	events, _, err := l.read(ctx, viewer, f)
	return events, err
}

// read returns up to f.Limit events, or fewer if their data is large; all
// says that there are no more events.
func (l eventLog) read(ctx context.Context, viewer engi.Viewer, f engi.EventFilter) (events []engi.Event, all bool, err error) {
	if err := f.Check(); err != nil {
		return nil, false, err
	}
	w := conditions(viewer, f)
	order := "seq"
	if f.Subject != "" {
		order = "prev" // see conditions
	}
	if !f.Oldest {
		order += " DESC"
	}
	size := 0
	events, err = listWhile(ctx, l.db.read, scanEvent, func(e engi.Event) bool {
		size += len(e.Data)
		return size < maxEventPage
	}, `SELECT `+eventColumns+` FROM events`+w.String()+` ORDER BY `+order+` LIMIT ?`, append(w.args, f.Limit)...)
	return events, len(events) < f.Limit && size < maxEventPage, err
}

// Last returns the Seq of the newest event.
func (l eventLog) Last(ctx context.Context) (int64, error) {
	return first(ctx, l.db.read, nil, value[int64], `SELECT coalesce(max(seq), 0) FROM events`)
}

// Follow yields events as they are appended.
func (l eventLog) Follow(ctx context.Context, viewer engi.Viewer, f engi.EventFilter) iter.Seq2[engi.Event, error] {
	f.Before, f.Limit, f.Oldest = 0, 0, true
	switch {
	case f.Owner == "":
	case viewer.Sees(f.Owner):
		viewer = f.Owner.Viewer()
	default:
		f.Subject = "none"
	}
	return func(yield func(engi.Event, error) bool) {
		if err := f.Check(); err != nil {
			yield(engi.Event{}, err)
			return
		}
		follower, stop := l.db.hub.follow(viewer, f)
		defer stop()
		if marker, err := l.dropped(ctx, viewer, f.After); err != nil || marker.Type != "" {
			if !yield(marker, err) || err != nil {
				return
			}
		}
		for {
			events, through, ok := l.db.hub.after(viewer, f)
			if !ok {
				var err error
				if events, through, err = l.page(ctx, viewer, f, through); err != nil {
					yield(engi.Event{}, err)
					return
				}
			}
			for _, e := range events {
				if !yield(e, nil) {
					return
				}
			}
			if f.After < through {
				f.After = through
				continue
			}
			select {
			case <-follower.wake:
			case <-ctx.Done():
				yield(engi.Event{}, engi.Errorf(engi.Expired, "follow events: %v", context.Cause(ctx)))
				return
			}
		}
	}
}

// page reads the next events that viewer sees and f selects from the database, and returns a
// Seq up to which no event is missing; last is the Seq of the newest published event.
func (l eventLog) page(ctx context.Context, viewer engi.Viewer, f engi.EventFilter, last int64) ([]engi.Event, int64, error) {
	f.Limit = eventPage
	events, all, err := l.read(ctx, viewer, f)
	if err != nil {
		return nil, 0, err
	}
	n := len(events)
	switch {
	case !all:
		last = events[n-1].Seq
	case n > 0:
		last = max(last, events[n-1].Seq)
	}
	return events, last, nil
}

// dropped returns the marker for dropped events of viewer after the sequence number after; its
// Type is empty if no event was dropped.
func (l eventLog) dropped(ctx context.Context, viewer engi.Viewer, after int64) (e engi.Event, err error) {
	type gap struct{ count, through int64 }
	g, err := first(ctx, l.db.read, nil, func(row scanner) (g gap, err error) {
		return g, row.Scan(&g.count, &g.through)
	}, `SELECT coalesce(sum(dropped), 0), coalesce(max(through), 0) FROM event_totals WHERE through > ? AND (? = '*' OR owner = ?)`, after, string(viewer), string(viewer))
	if err != nil || g.count == 0 {
		return e, err
	}
	return engi.Event{
		Seq: after, Owner: viewer.Owner(), Subject: "events", Type: engi.EventsDropped, Time: time.Now().UTC(),
		Data: json.RawMessage(fmt.Sprintf(`{"count":%d,"through":%d}`, g.count, g.through)),
	}, nil
}

// EventBounds limits the event log of each owner.
type EventBounds struct {
	Age   time.Duration // maximum age; 0 means 30 days
	Count int64         // maximum number of events; 0 means 200,000
	Bytes int64         // maximum bytes of data and names; 0 means 128 MiB
}

// eventBytes is the approximate size of an event without its data.
const eventBytes = `sum(150 + length(type) + length(subject) + length(actor) + length(data))`

// dropMost is the maximum number of events dropped in one transaction, so that it
// stays short.
const dropMost = 5000

// TrimEvents drops the oldest events of owners that exceed b, and returns the number of dropped
// events. It keeps the newest event of all, and events that an unfinished function run
// needs.
func TrimEvents(ctx context.Context, db *DB, b EventBounds) (dropped int64, err error) {
	defer engi.Annotate(&err, "trim the log of events")
	b.Age, b.Count, b.Bytes = cmp.Or(b.Age, 30*24*time.Hour), cmp.Or(b.Count, 200_000), cmp.Or(b.Bytes, 128<<20)
	// Count only events since the last call.
	if _, err := db.exec(ctx, `INSERT INTO event_totals (owner, seq, count, bytes, dropped, through)
		SELECT e.owner, max(e.seq), count(*), `+strings.NewReplacer("type", "e.type", "subject", "e.subject", "actor", "e.actor", "data", "e.data").Replace(eventBytes)+`, 0, 0
		FROM events e WHERE e.seq > (SELECT coalesce(max(seq), 0) FROM event_totals) GROUP BY e.owner
		ON CONFLICT (owner) DO UPDATE SET seq = excluded.seq, count = count + excluded.count, bytes = bytes + excluded.bytes`); err != nil {
		return 0, err
	}
	type total struct {
		owner        engi.Owner
		count, bytes int64
	}
	owners, err := list(ctx, db.read, func(row scanner) (o total, err error) {
		return o, row.Scan(&o.owner, &o.count, &o.bytes)
	}, `SELECT owner, count, bytes FROM event_totals`)
	if err != nil {
		return 0, err
	}
	for _, o := range owners {
		for {
			n, err := trim(ctx, db, o.owner, b)
			if dropped += n; err != nil {
				return dropped, err
			}
			if n < dropMost {
				break
			}
		}
	}
	return dropped, nil
}

// trim drops at most dropMost events of one owner.
func trim(ctx context.Context, db *DB, owner engi.Owner, b EventBounds) (n int64, err error) {
	err = db.tx(ctx, func(t *tx) error {
		var count, size int64
		if err := t.row(ctx, `SELECT count, bytes FROM event_totals WHERE owner = ?`, string(owner)).Scan(&count, &size); err != nil {
			return fault(ctx, err)
		}
		most := int64(dropMost)
		oldest := nanos(time.Now().Add(-b.Age))
		excess := max(count-b.Count, 0)
		if size > b.Bytes { // the number of events that hold the excess on average
			excess = max(excess, count*(size-b.Bytes)/max(size, 1)+1)
		}
		ids, err := list(ctx, t, value[int64], `SELECT seq FROM events e WHERE owner = ?1
			AND (time < ?2 OR seq <= coalesce((SELECT seq FROM events WHERE owner = ?1 ORDER BY seq LIMIT 1 OFFSET ?3 - 1), 0) AND ?3 > 0)
			AND seq < (SELECT max(seq) FROM events)
			AND NOT EXISTS (SELECT 1 FROM function_runs r WHERE r.event = e.id AND r.ended = 0)
			ORDER BY seq LIMIT ?4`, string(owner), oldest, min(excess, most), most)
		if err != nil || len(ids) == 0 {
			return err
		}
		in, args := marks(len(ids)), values(ids)
		freed, err := first(ctx, t, nil, value[int64], `SELECT `+eventBytes+` FROM events WHERE seq IN (`+in+`)`, args...)
		if err != nil {
			return err
		}
		if n, err = t.exec(ctx, `DELETE FROM events WHERE seq IN (`+in+`)`, args...); err != nil {
			return err
		}
		_, err = t.exec(ctx, `UPDATE event_totals SET count = count - ?, bytes = bytes - ?, dropped = dropped + ?, through = max(through, ?) WHERE owner = ?`,
			n, freed, n, slices.Max(ids), string(owner))
		return err
	})
	return n, err
}
