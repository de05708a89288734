// Which pages there are.

import type { ComponentType } from 'preact'
import { Agents } from './agents'
import { Apps } from './apps'
import { Events } from './events'
import { Home } from './home'
import { Pages } from './pages'
import { Docs, Tools } from './docs'
import { Keys, Secrets, Sessions, Templates, Volumes } from './records'
import { Run } from './run'
import { Sandboxes } from './sandboxes'
import { Usage } from './usage'
import { Webhooks } from './webhooks'
import { Approvals, Functions, Waiting } from './work'
import { Workspaces } from './workspaces'

export interface PageEntry {
  id: string // first part of the address
  name: string
  group: string
  page: ComponentType<{ id?: string }>
  badge?: ComponentType
}

export const groups = ['', 'Compute', 'Agents', 'Node']

export const pages: PageEntry[] = [
  { id: '', name: 'Home', group: '', page: Home },
  { id: 'run', name: 'Run', group: '', page: Run },
  { id: 'sandboxes', name: 'Sandboxes', group: 'Compute', page: Sandboxes },
  { id: 'sessions', name: 'Sessions', group: 'Compute', page: Sessions },
  { id: 'workspaces', name: 'Workspaces', group: 'Compute', page: Workspaces },
  { id: 'apps', name: 'Apps', group: 'Compute', page: Apps },
  { id: 'templates', name: 'Templates', group: 'Compute', page: Templates },
  { id: 'volumes', name: 'Volumes', group: 'Compute', page: Volumes },
  { id: 'agents', name: 'Agents', group: 'Agents', page: Agents },
  { id: 'pages', name: 'Pages', group: 'Agents', page: Pages },
  { id: 'docs', name: 'Docs', group: 'Agents', page: Docs },
  { id: 'tools', name: 'Tool servers', group: 'Agents', page: Tools },
  { id: 'functions', name: 'Functions', group: 'Agents', page: Functions },
  { id: 'approvals', name: 'Approvals', group: 'Agents', page: Approvals, badge: Waiting },
  { id: 'events', name: 'Events', group: 'Node', page: Events },
  { id: 'webhooks', name: 'Webhooks', group: 'Node', page: Webhooks },
  { id: 'usage', name: 'Usage', group: 'Node', page: Usage },
  { id: 'secrets', name: 'Secrets', group: 'Node', page: Secrets },
  { id: 'keys', name: 'Keys', group: 'Node', page: Keys },
]
