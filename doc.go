// Package engi is the vocabulary of the house: the nouns, their IDs and
// states, the kinds of error, and the interfaces by which rooms meet. It
// imports the standard library only and does nothing by itself; every other
// package may import it.
//
// # What engi is
//
// One program that runs the code language models write, in real sandboxes on
// the user's own machines. A caller hands in a [Program]; engi runs it in a
// sandbox nobody else ever used and gives back a [Result] with what it printed,
// how it ended and the files it left. A program that fails is an answer, not
// an error.
//
// # The words
//
// An [Execution] is one run of code. A [Sandbox] is the durable record of one
// isolated environment. A machine is the running thing a provider started for
// it, see [provider.Machine]. The guest is the program inside, seen from
// outside as [Guest]. A node is one server process. An [Owner] is who may see
// and use an object; to everybody else it does not exist. A [Template] is a
// root file system with the facts needed to run programs in it. A [Tier] says
// how strong the wall is.
//
// # The house, bottom-up
//
// provider/provider.go is the seam to what isolates: start a machine, open a
// stream to its guest, end it. Its promises are numbered, and
// provider/providertest holds every kind to them: provider/gvisor, whose
// machines outlive the daemon, and provider/memory, the twin that tests use.
//
// guest/wire is the protocol between the two sides of the wall, guest/guestd
// the program inside (built as cmd/engi-guest), guest the host's side of it.
// The guest dials and the host listens, so that nothing inside can write to
// the host: docs/decisions/0003-the-guest-dials.md.
//
// disk keeps templates: it builds them from YAML definitions without Docker
// and removes what nobody needs. disk/volume keeps directories that outlive
// sandboxes, disk/snapshot copies of sandboxes that can start others.
//
// script is the lightest tier, for programs of a few lines that answer in a
// millisecond: an interpreter in a locked-down helper (cmd/engi-js), and host
// functions as the only way out.
//
// fleet joins the three. It keeps warm pools, whose members have the
// interpreter already started, runs executions, and after a crash compares
// what is wanted (the store) with what is found (the provider's traces). It
// serves [Executions], [Sandboxes] and [Pools]; nothing above it can tell a
// fleet from anything else that serves them.
//
// store is the memory of the rooms, in SQL: each room says what small store it
// needs, and store/store.go serves them all from one file.
//
// gate is what crosses the wall. gate/key knows who calls: it recognizes keys
// by their hash. gate/preview brings requests to ports inside sandboxes,
// gate/cert has the certificates for their names, and gate/secret keeps values
// that never enter a sandbox. gate/egress is the way out: gate/egress/link gives
// each sandbox a network namespace with one cable, the other end of which is a
// TCP/IP stack in this process, so that every question and every connection is a
// function call that gate/egress/policy judges; gate/egress/intercept puts
// secrets into requests on their way. gate/fetch makes the HTTP clients for URLs
// that users name. See docs/decisions/0008-the-wall.md.
//
// session keeps callers' contexts, which outlive their sandboxes: session/deps
// installs packages once for all of them, session/deno runs their TypeScript.
//
// agent puts language models to work, step by step and across restarts:
// agent/llm talks to providers, agent/tool is what a model can ask for, and
// agent/remote brings tools of servers elsewhere, which run in sandboxes if they
// are programs. See docs/decisions/0009-a-loop-of-our-own.md.
//
// library reads documentation and remembers code modules, and finds pieces of
// them by words and by likeness. It has an embedder of its own, so that it
// works with no provider at all.
//
// workflow runs durable functions on events and at set times: it keeps events,
// turns and states; an engine behind a seam, workflow/dbos or workflow/inngest,
// sees to it that a run comes to its end with no finished step done twice.
//
// api/v1 has the wire types, api/rest the HTTP surface and its OpenAPI
// description, client the Go SDK on top of the wire types alone. api/compat/e2b
// speaks E2B's protocol, so that its unmodified clients work; api/mcp offers the
// agents' tools to other people's agents.
//
// node assembles a running system from a configuration and decides nothing
// itself; cmd/engi is the command line.
//
// # The life of an execution
//
// A request reaches api/rest, which authenticates the caller, reads the
// program and hands an [ExecutionSpec] to [Executions]. The fleet checks it,
// claims a warm member (a receive from a channel), records that this sandbox
// now belongs to this execution, and only then sends the program in: one
// request that carries files, arguments, environment and limits. The waiting
// interpreter goes on with its ordinary start. Output comes back on the same
// stream as numbered bytes, to everybody who watches and onto a tape that
// survives the process; the last frame says how the program ended and what
// files it left. The record is written before the caller hears of it, and the
// sandbox is destroyed. If the daemon is killed at any point, the next one
// finds the sandbox, attaches to the same run, and goes on at the next byte.
//
// # The life of a sandbox
//
// [Sandboxes.Create] takes a bare member of the pool, or boots a machine of the
// wanted size with the wanted volumes, and records that it is its owner's before
// anything of the owner goes in. [Sandboxes.Enter] is the one way in; whoever is
// inside keeps it from being idle. One timekeeper looks at deadlines and
// idleness and ends a sandbox or puts it to sleep. [Lifecycle] freezes it in
// memory, writes it to disk and wakes it under the same ID, copies it into a
// snapshot, or forks it. Each step is recorded before it is made, and the image
// on disk goes only when the record says that the machine runs: whatever moment
// the daemon is killed at, the next one finds the machine or the image. See
// docs/decisions/0004-sandboxes-sleep.md.
//
// # The life of an event
//
// [Events.Send] records an event and one run for each function that is bound to
// it in one transaction, and only then tells the caller. A run waits for its
// turn, is handed to the engine, and is carried out step by step; the result of
// each step is kept before the next one begins. An attempt that fails is made
// again later without the steps that are done. If the daemon is killed, the next
// one hands over what was recorded and not begun, and the engine goes on with
// what it knows.
//
// # Rules
//
// Who may import whom is the table in test/arch. An error is an [Error] of one
// of ten kinds, see [Kinds]. Every end has a [Cause], and every cause other
// than exited a remedy. State changes go through the table of [State]. Decisions are
// recorded below docs/decisions.
package engi
