/** The dashboard as files that the gateway serves: `dist/web/`. */
import { fileURLToPath } from 'node:url';
import { defineConfig } from 'vite';

export default defineConfig({
  root: fileURLToPath(new URL('.', import.meta.url)),
  // Relative, for a page that lies behind any prefix.
  base: './',
  oxc: { jsx: { runtime: 'automatic', importSource: 'preact' } },
  build: {
    outDir: fileURLToPath(new URL('../dist/web', import.meta.url)),
    emptyOutDir: true,
    target: 'es2022',
    // One file each: a page through a tunnel waits for round trips, not for bytes.
    cssCodeSplit: false,
    modulePreload: { polyfill: false },
    // The page's policy lets nothing in by `data:` but images.
    assetsInlineLimit: 0,
    // Of the packages that are in the file: their licenses ask for it.
    license: { fileName: 'licenses.md' },
    rolldownOptions: { output: { codeSplitting: false } },
  },
});
