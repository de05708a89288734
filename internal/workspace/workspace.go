// Package workspace keeps workspaces: it implements [engi.Workspaces]. The files of a
// workspace are its revisions; the sandbox in which people and programs work is a working
// copy, which can be made again from the last one.
//
// It is not for running sandboxes, which package fleet does, nor for apps that models write
// and whose servers are watched, which package app keeps.
//
// A revision is recorded first, and put into the sandbox then. The record says which
// revision the sandbox was made of ([Record.Base]), so that whoever uses a workspace that
// was left in between can tell what is still to be put there from what somebody has
// changed there.
package workspace

import (
	"cmp"
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/guest/worktree"
	"github.com/engi-dev/engi/internal/sandbox/holder"
)

// Options configure a Service. Everything but Log and Idle is required.
type Options struct {
	Store     Store
	Sandboxes engi.Sandboxes
	Templates engi.Templates
	Volumes   engi.Volumes
	Log       *slog.Logger // nil discards

	Network  engi.NetworkPolicy // of sandboxes of workspaces, without group and name
	MaxAwake time.Duration      // how long a sandbox may run before it hibernates, however it is used
	Idle     time.Duration      // without use, after which a sandbox hibernates; 0 means 15 minutes
}

const (
	defaultTemplate = "base"
	defaultIdle     = 15 * time.Minute
	maxWorkspaces   = 1000 // of one owner
	undoTime        = time.Minute
)

// A Service manages workspaces. It is safe for concurrent use.
type Service struct {
	opt       Options
	sandboxes holder.Holder                          // of working copies
	servers   holder.Holder                          // of services
	locks     *engi.KeyedSemaphore[engi.WorkspaceID] // of the files, the sandbox and the services
	work      sync.WaitGroup                         // what goes on after a call returns
	life      context.Context                        // of that
	end       context.CancelFunc                     // of life

	serving  *engi.KeyedSemaphore[serviceKey] // of the server of a service
	attempts chan struct{}                    // holds a value for each service that is looked at or started

	held *engi.Shares                     // bytes that were read and are not recorded yet
	gits *engi.KeyedSemaphore[engi.Owner] // of programs of git, by whose they are

	mu       sync.Mutex                                  // guards the beginning of work, too
	copies   map[engi.WorkspaceID]*worktree.Copy[string] // of those with sandboxes; guarded by mu, what is in them by locks
	attended map[serviceKey]int                          // how many see to a service; guarded by mu
	looked   map[engi.WorkspaceID]time.Time              // when a preview has last had the sandbox looked at; guarded by mu
}

// New returns a service. It does nothing by itself before Run.
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
		serving: engi.NewKeyedSemaphore[serviceKey](1), gits: engi.NewKeyedSemaphore[engi.Owner](maxGit), attempts: make(chan struct{}, maxAttempts), attended: map[serviceKey]int{}, looked: map[engi.WorkspaceID]time.Time{},
	}
	s.life, s.end = context.WithCancel(context.Background())
	return s
}

// Run goes on with what a former node has left half done, until ctx ends.
func (s *Service) Run(ctx context.Context, ready func()) error {
	defer func() {
		s.mu.Lock() // nobody begins anything new
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

// reconcile starts workspaces that a former node was starting, and destroys sandboxes of
// services that it had not recorded yet.
func (s *Service) reconcile(ctx context.Context) error {
	if err := s.servers.Sweep(ctx, func(sb engi.Sandbox) (bool, error) {
		w, err := s.opt.Store.Find(ctx, "", sb.Notes[noteWorkspace])
		if err != nil && !engi.Is(err, engi.NotFound) {
			return false, err
		}
		r, missing := w.service(sb.Notes[noteService])
		return err == nil && missing == nil && r.Sandbox == sb.ID, nil
	}); err != nil {
		return err
	}
	all, err := s.opt.Store.List(ctx, "", engi.Paging{})
	if err != nil {
		return err
	}
	for _, r := range all {
		if r.State != engi.WorkspaceStarting {
			continue
		}
		s.begin(ctx, func(ctx context.Context) {
			if _, err := s.Start(ctx, "", string(r.ID)); err != nil && ctx.Err() == nil && !engi.Is(err, engi.NotFound) {
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
	// It goes on when ctx ends, and ends with the service.
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(s.life, cancel)
	s.work.Go(func() {
		defer cancel()
		defer stop()
		f(ctx)
	})
	return true
}

// late returns a context for what is still to be done once ctx has ended.
func (s *Service) late(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTime)
	stop := context.AfterFunc(s.life, cancel)
	return ctx, func() { stop(); cancel() }
}

// find returns a workspace in which owner has at least the role need. For strangers there
// is none; others are told that their role does not suffice.
func (s *Service) find(ctx context.Context, owner engi.Owner, idOrName string, need engi.WorkspaceRole) (Record, error) {
	r, err := s.opt.Store.Find(ctx, owner, idOrName)
	if err != nil {
		return Record{}, err
	}
	return r, r.Allow(owner, need)
}

// hold returns a workspace as find does, which nobody else changes until release is called.
func (s *Service) hold(ctx context.Context, owner engi.Owner, idOrName string, need engi.WorkspaceRole) (r Record, release func(), err error) {
	if r, err = s.find(ctx, owner, idOrName, need); err != nil {
		return r, nil, err
	}
	if release, err = s.locks.Acquire(ctx, r.ID); err != nil {
		return r, nil, err
	}
	// It may have changed, or its collaborators, while this waited.
	if r, err = s.find(ctx, owner, string(r.ID), need); err != nil {
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

// network returns the policy of a sandbox of a workspace that is called name there: those
// of one workspace reach each other.
func (s *Service) network(r Record, name string) engi.NetworkPolicy {
	p := s.opt.Network
	if p.Mode == engi.NetworkNone {
		p.Mode = engi.NetworkIsolated // the narrowest in which there are groups
	}
	p.Group, p.Name = "ws-"+r.ID.Label(), name
	return p
}
