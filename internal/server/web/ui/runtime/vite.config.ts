import { defineConfig } from 'vite'

// A module for each thing that others import; no code is in two of them. In mode app,
// the one that has all that it needs in it.
export default defineConfig(({ mode }) => ({
  publicDir: false,
  build: {
    emptyOutDir: mode !== 'app',
    target: 'es2022',
    modulePreload: false,
    rolldownOptions: {
      input: mode === 'app' ? { app: 'src/app.ts' } : { index: 'src/index.ts', element: 'src/element.ts', react: 'src/react.ts' },
      external: ['react'],
      preserveEntrySignatures: 'allow-extension',
      output: { entryFileNames: '[name].js', chunkFileNames: '[name].js', minify: true },
    },
  },
}))
