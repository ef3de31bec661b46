/**
 * Runs before every test file. An end-to-end test types commands, of which each may take two minutes before it is ended
 * itself, with the words that it has said until then: what says nothing of its own limit has at least as long.
 */
import { expect, vi } from 'vitest';

if (expect.getState().testPath?.endsWith('.e2e.test.ts')) vi.setConfig({ testTimeout: 180_000 });
