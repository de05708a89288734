// Package workspace manages workspaces: it implements [engi.Workspaces]. The files of a
// workspace are its revisions; the sandbox in which people and programs work is a working
// copy, which can be rebuilt from the last revision.
//
// It does not run sandboxes, which package fleet does. Package app manages apps, whose
// files models write and whose servers are watched.
//
// A revision is recorded first, and written to the sandbox afterwards. The record has the
// revision from which the sandbox was made ([Record.Base]). So after an interruption,
// the next user of the workspace can tell files that are still to be written to the sandbox
// from files that were changed in the sandbox.
package workspace

import (
	"cmp"
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/idempotency"
	"github.com/engi-dev/engi/internal/sandbox/guest/worktree"
	"github.com/engi-dev/engi/internal/sandbox/holder"
)

// Options configures a Service. All fields except Log, Mongod and Idle are required.
type Options struct {
	Store     Store
	Sandboxes engi.Sandboxes
	Templates engi.Templates
	Volumes   engi.Volumes
	Log       *slog.Logger // nil discards

	Network  engi.NetworkPolicy // network policy of the sandboxes of workspaces, without group and name
	Mongod   string             // template whose mongod serves new mongodb services; empty for FerretDB
	MaxAwake time.Duration      // maximum run time of a sandbox before it hibernates, even in use
	Idle     time.Duration      // time without use after which a sandbox hibernates; 0 means 15 minutes
}

const (
	defaultTemplate = "base"
	defaultIdle     = 15 * time.Minute
	maxWorkspaces   = 1000 // maximum number of workspaces of one owner
	undoTime        = time.Minute
)

// A Service manages workspaces. It is safe for concurrent use.
type Service struct {
	opt       Options
	sandboxes holder.Holder                          // of working copies
	servers   holder.Holder                          // of services
	locks     *engi.KeyedSemaphore[engi.WorkspaceID] // locks of the files, the sandbox and the services of a workspace
	work      sync.WaitGroup                         // background work
	life      context.Context                        // context of the background work
	end       context.CancelFunc                     // ends life

	serving  *engi.KeyedSemaphore[serviceKey] // lock of the server of a service
	attempts chan struct{}                    // holds a value for each service that is being checked or started

	held *engi.Shares                     // bytes that were read and are not recorded yet
	gits *engi.KeyedSemaphore[engi.Owner] // limits the git requests of each owner
	keys *idempotency.Keys

	mu       sync.Mutex                                  // also guards the start of background work
	copies   map[engi.WorkspaceID]*worktree.Copy[string] // copies of workspaces with sandboxes; guarded by mu, their contents by locks
	attended map[serviceKey]int                          // number of callers that attend to a service; guarded by mu
	looked   map[engi.WorkspaceID]time.Time              // time of the last refresh for a preview; guarded by mu
}

// New returns a service. It does no background work before Run.
func New(o Options) *Service {
	o.Idle = cmp.Or(o.Idle, defaultIdle)
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	s := &Service{
		opt:       o,
		sandboxes: holder.Holder{Sandboxes: o.Sandboxes, Thing: workingCopyIn, Bound: worktree.Default.Bound, Log: o.Log},
		servers:   holder.Holder{Sandboxes: o.Sandboxes, Thing: serviceIn, Log: o.Log},
		locks:     engi.NewKeyedSemaphore[engi.WorkspaceID](1), held: engi.NewShares(maxHeld), copies: map[engi.WorkspaceID]*worktree.Copy[string]{},
		serving: engi.NewKeyedSemaphore[serviceKey](1), gits: engi.NewKeyedSemaphore[engi.Owner](maxGit), keys: idempotency.NewKeys(nil), attempts: make(chan struct{}, maxAttempts), attended: map[serviceKey]int{}, looked: map[engi.WorkspaceID]time.Time{},
	}
	s.life, s.end = context.WithCancel(context.Background())
	return s
}

// Run finishes the unfinished work of an earlier node, and supervises services until ctx ends.
func (s *Service) Run(ctx context.Context, ready func()) error {
	defer func() {
		s.mu.Lock() // no new work starts
		s.end()
		s.mu.Unlock()
		s.work.Wait()
	}()
	if err := s.reconcile(ctx); err != nil {
		return err
	}
	ready()
	s.supervise(ctx)
	return nil
}

// reconcile starts workspaces that an earlier node was starting, and destroys sandboxes of
// services that no record has.
func (s *Service) reconcile(ctx context.Context) error {
	if err := s.servers.Sweep(ctx, func(sb engi.Sandbox) (bool, error) {
		w, err := s.opt.Store.Find(ctx, engi.Everyone, sb.Notes[noteWorkspace])
		if err != nil && !engi.Is(err, engi.NotFound) {
			return false, err
		}
		r, missing := w.service(sb.Notes[noteService])
		return err == nil && missing == nil && r.Sandbox == sb.ID, nil
	}); err != nil {
		return err
	}
	all, err := s.opt.Store.List(ctx, engi.Everyone, engi.Paging{})
	if err != nil {
		return err
	}
	for _, r := range all {
		if r.State != engi.WorkspaceStarting {
			continue
		}
		s.begin(ctx, func(ctx context.Context) {
			if _, err := s.Start(ctx, engi.Everyone, string(r.ID)); err != nil && ctx.Err() == nil && !engi.Is(err, engi.NotFound) {
				s.opt.Log.WarnContext(ctx, "start a workspace that a former node was starting", "workspace", r.ID, "error", err)
			}
		})
	}
	return nil
}

// begin runs f in the background, unless the service has ended.
func (s *Service) begin(ctx context.Context, f func(ctx context.Context)) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.life.Err() != nil {
		return false
	}
	// The work continues when ctx ends, and ends with the service.
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(s.life, cancel)
	s.work.Go(func() {
		defer cancel()
		defer stop()
		f(ctx)
	})
	return true
}

// late returns a context for work that must finish after ctx has ended.
func (s *Service) late(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTime)
	stop := context.AfterFunc(s.life, cancel)
	return ctx, func() { stop(); cancel() }
}

// find returns a workspace in which owner has at least the role need. It reports NotFound to
// strangers, and Denied to collaborators with a lower role.
func (s *Service) find(ctx context.Context, viewer engi.Viewer, idOrName string, need engi.WorkspaceRole) (Record, error) {
	r, err := s.opt.Store.Find(ctx, viewer, idOrName)
	if err != nil {
		return Record{}, err
	}
	return r, r.Allow(viewer, need)
}

// hold returns a workspace like find, and locks it until release is called.
func (s *Service) hold(ctx context.Context, viewer engi.Viewer, idOrName string, need engi.WorkspaceRole) (r Record, release func(), err error) {
	if r, err = s.find(ctx, viewer, idOrName, need); err != nil {
		return r, nil, err
	}
	if release, err = s.locks.Acquire(ctx, r.ID); err != nil {
		return r, nil, err
	}
	// The workspace or its collaborators may have changed while this call waited for the lock.
	if r, err = s.find(ctx, viewer, string(r.ID), need); err != nil {
		release()
		return r, nil, err
	}
	return r, release, nil
}

// Users find the sandboxes of a workspace by its name in their metadata. A sandbox belongs
// to the workspace if it has the ID as a note. The sandbox of a service has the name of the
// service as another note.
const (
	noteWorkspace = "workspace"
	noteService   = "service"
	metaWorkspace = "workspace"
)

// workingCopyIn returns the ID of the workspace whose working copy is in a sandbox.
func workingCopyIn(sb engi.Sandbox) string {
	if sb.Notes[noteService] != "" {
		return ""
	}
	return sb.Notes[noteWorkspace]
}

// serviceIn returns the key of the service that runs in a sandbox, as serviceKey.String does.
func serviceIn(sb engi.Sandbox) string {
	w, name := sb.Notes[noteWorkspace], sb.Notes[noteService]
	if w == "" || name == "" {
		return ""
	}
	return serviceKey{engi.WorkspaceID(w), name}.String()
}

// network returns the network policy of a sandbox with a name in the group of a workspace: sandboxes
// of one workspace can reach each other.
func (s *Service) network(r Record, name string) engi.NetworkPolicy {
	p := s.opt.Network
	if p.Mode == engi.NetworkNone {
		p.Mode = engi.NetworkIsolated // the strictest mode that has groups
	}
	p.Group, p.Name = r.ID.Group(), name
	return p
}
