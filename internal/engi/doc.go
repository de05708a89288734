// Package engi defines the vocabulary of the program: the types of objects,
// their IDs and states, the kinds of error, and the interfaces of services.
// Every other package may import it; it imports only the standard library and
// has no behaviour of its own. This comment is a tour of the code.
//
// # What engi is
//
// engi runs code that language models write, in sandboxes on the user's own
// machines, as one program. A caller sends a [Program]; engi runs it in a new
// sandbox and returns a [Result] with its output, how it ended and the files it
// wrote. A program that fails is a result, not an error.
//
// # Terms
//
//   - An [Execution] is one run of a program in a sandbox that is then destroyed.
//   - A [Sandbox] is an isolated environment that an owner keeps, and its record.
//   - An instance is one booted machine with its guest; a sandbox has one while it
//     is awake. A machine is what a provider started, see [provider.Machine].
//   - The guest is the program of engi in a sandbox; the host uses it as [Guest].
//   - A node is one server process. An agent is a language model at work.
//   - An [Owner] is who may see and use an object. Nobody else can tell that it
//     exists.
//   - A [Template] is a root file system with what is needed to know to run
//     programs in it.
//   - A [Tier] is a strength of isolation. The wall is the network boundary of a
//     sandbox.
//   - An [Event] is an entry in the log of what has happened.
//
// # The packages, bottom-up
//
// Paths are those below internal/, where all packages are but cmd, api/v1 and client,
// which other programs may use.
//
// Isolation. package provider is the interface to what isolates sandboxes: it starts
// a machine, opens a stream to its guest, and ends it. Its promises are numbered,
// and sandbox/provider/providertest tests them for each implementation:
// sandbox/provider/gvisor, whose machines outlive the server, and
// sandbox/provider/memory, a fake without isolation for tests.
//
// The guest. sandbox/guest/wire is the protocol between host and guest,
// sandbox/guest/guestd the program in the sandbox (built as cmd/engi-guest), package
// guest the host side. The guest dials and the host listens, so that nothing in a
// sandbox can reach a socket of the host: docs/decisions/0003-the-guest-dials.md.
// sandbox/guest/fileops has the file operations that agents use.
//
// Storage for sandboxes. package disk builds templates from YAML definitions without
// Docker and removes unused builds. sandbox/disk/volume keeps directories that
// outlive sandboxes, sandbox/disk/snapshot copies of sandboxes that others can start
// from.
//
// Running programs. package fleet joins these three. It has three parts: pools,
// which boot instances in advance with the interpreter already started,
// executions and sandboxes. After a crash it reconciles what the store wants with
// what providers find. It implements [Executions], [Sandboxes], [Lifecycle] and
// [Pools], which is all that other packages see of it. Output goes to an
// outputlog, which is written once, read from any offset and survives the process.
//
// package script is the lightest tier, for programs of a few lines that answer in
// a millisecond: an interpreter in a restricted helper process (cmd/engi-js),
// whose only access to anything is host functions.
//
// The boundary. access/key authenticates callers. access/secret stores encrypted
// values that never enter a sandbox. network/egress is the wall: network/egress/link
// gives each sandbox a network namespace with one link, which ends in a TCP/IP stack
// in this process, so that each DNS query and connection is a function call that
// network/egress/policy decides; network/egress/intercept puts secrets into requests
// on their way. network/fetch makes HTTP clients for URLs that users name, and
// network/mask overwrites secrets in what others answer. access/approval holds
// requests that somebody must decide on ([Approver], [Approvals]). network/mirror
// serves the public registries of packages to sandboxes, from a cache.
// network/preview proxies requests to services in sandboxes, terminal keeps
// their terminals, access/ssh lets owners into sessions and sandboxes over SSH,
// network/cert has the server's certificates, access/signin signs browsers in with
// keys. See docs/decisions/0008-the-wall.md.
//
// Records. package store has the SQL database of a node. Each package declares
// the storage that it needs as an interface and store implements it, one file for
// each. store also has the log of events, see below.
//
// Services on top. package session manages long-lived contexts, which get a sandbox
// when they need one; session/deps installs their packages, session/deno runs
// TypeScript in them. package agent runs agents step by step and resumes them after
// a restart: agent/llm talks to models, agent/tool has the tools, agent/remote adds
// those of MCP servers, agent/budget limits what owners spend, page makes pages of
// what models write. See docs/decisions/0009-a-loop-of-our-own.md. package docs
// stores and searches documentation and code modules. package function runs durable
// functions on events and on schedules, executed by function/dbos or
// function/inngest. package webhook sends events to other servers, as runs of such
// functions. package operation does work that takes longer than a request. package
// app keeps applications that models write, with their history, and has them
// served from sandboxes: app/output reads what models write, app/edit changes
// texts by it, app/project knows what the files import, app/problems reads
// what tools complain about. package workspace keeps files with a history and
// services like databases, for several people: workspace/repo has the objects of git
// that the history consists of, workspace/transfer gives them to programs of git and
// takes theirs, workspace/server knows how servers are started in sandboxes,
// workspace/database queries them over their own protocols. package patch shows
// differences of texts, sandbox/guest/worktree reads the files of a sandbox again
// only where they have changed.
//
// APIs. api/v1 has the wire types and server/rest the HTTP API with its OpenAPI
// description. A route is one value, a [rest.Route]: method and path, access,
// types, documentation, idempotency and handler. A resource is a list of routes,
// made from the services that it needs. server/mcp serves tools to other programs'
// agents, server/compat/e2b speaks E2B's protocol, so that its unmodified clients
// work. server/web serves the dashboard, whose pages use the HTTP API and nothing
// else. server/pagestream has the protocols that pages of sessions are streamed in. What
// these share is in server/httpio. package client is the Go SDK,
// which uses the wire types alone; package attack attacks a node with it.
//
// Assembly. package node makes a server of all this from a configuration
// (node/config) and has no logic of its own; cmd/engi is the command line.
//
// # The life of an execution
//
// server/rest authenticates the caller, reads the program and passes an
// [ExecutionSpec] to [Executions]. The fleet validates it, takes an instance from a
// warm pool, records that this instance now belongs to this execution, and only
// then sends the program: one request with files, arguments, environment and
// limits, which the waiting interpreter runs. Output comes back on the same stream
// with offsets, to everybody who watches and to the output log; the last frame
// tells how the program ended and which files it left. The result is recorded
// before the caller gets it, and the instance is destroyed. If the server is
// killed at any point, the next one finds the machine, attaches to the same run
// and continues at the next byte.
//
// # The life of a sandbox
//
// [Sandboxes.Create] takes an instance from a pool, or boots one with the requested
// size and volumes, and records the owner before any of the owner's data enters.
// [Sandboxes.Enter] is the only way to use it; a sandbox in use is not idle. One
// goroutine watches deadlines and idleness and deletes or hibernates sandboxes.
// [Lifecycle] pauses a sandbox in memory, hibernates it to disk and resumes it
// under the same ID, copies it into a snapshot, or forks it. Each step is recorded
// before it is taken, and an image on disk is removed only after the record says
// that the instance runs, so after a kill at any moment the next server finds the
// one or the other. See docs/decisions/0004-sandboxes-sleep.md.
//
// # The log of events
//
// Each change of a record in the store appends an [Event] in the same transaction,
// so the log and the records never disagree. [Events] lists and follows the log,
// [EventLog] appends to it; an append may name the event that it expects to be the
// last one about its subject, and fails if another came in between. Waiting,
// streams of changes, webhooks and functions started by events all follow this log, see
// docs/decisions/0013-one-event-log.md. Bulk output stays in output logs.
//
// [Functions.Send] appends an event and one run for each function that is bound to
// its type, in one transaction, and then returns. A run is queued, passed to the
// engine and executed step by step; the result of each step is stored before the
// next one begins, so a retry does not repeat completed steps. After a restart,
// recorded runs that had not begun are passed to the engine again, and the engine
// resumes the others.
//
// # Rules
//
// test/arch has the table of which package may import which. An error is an
// [Error] of one of the [Kinds]. Every way an execution ends is a [Cause], and
// every cause other than exited comes with a remedy. State changes follow the
// table of [State]. Decisions are recorded in docs/decisions.
package engi
