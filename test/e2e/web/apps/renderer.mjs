// A program that shows interfaces with MCP-UI's component for React.
import { Client } from '@modelcontextprotocol/sdk/client/index.js'
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js'
import { AppRenderer, UI_EXTENSION_CAPABILITIES } from '@mcp-ui/client'
import { createElement } from 'react'
import { createRoot } from 'react-dom/client'

const client = new Client({ name: 'renderer', version: '1' }, { capabilities: { extensions: UI_EXTENSION_CAPABILITIES } })
await client.connect(new StreamableHTTPClientTransport(new URL('/mcp', location)))
const { tools } = await client.listTools()

globalThis.heard = { links: [], sizes: [], errors: [] }
globalThis.call = (name, args) => client.callTool({ name, arguments: args })
globalThis.models = tools.filter((t) => t._meta?.ui?.visibility?.includes('model') ?? true).map((t) => t.name)
const root = createRoot(document.body.appendChild(document.createElement('div')))
const sandbox = { url: new URL(new URLSearchParams(location.search).get('sandbox')) }

/** Calls a tool as a model would, and shows its interface; or a resource. */
globalThis.show = async (toolName, toolInput, more = {}) => {
  const draw = (toolResult) => root.render(createElement(AppRenderer, {
    key: JSON.stringify([toolName, toolInput, more]), client, toolName, sandbox, toolInput, toolResult, ...more,
    onOpenLink: async ({ url }) => { heard.links.push(url); return {} },
    onSizeChanged: ({ height }) => heard.sizes.push(height),
    onError: (err) => heard.errors.push(String(err)),
  }))
  draw()
  if (more.toolResourceUri) return
  const result = await client.callTool({ name: toolName, arguments: toolInput })
  draw(result)
  return { content: result.content, error: result.isError }
}
globalThis.ready = true
