/** One deployment whose file is damaged stands in nobody's way. */
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, it } from 'vitest';
import { openOperations } from '../../control/runner/operations.ts';
import { stopDeployment } from '../../control/stop.ts';
import type { ProgressEvent } from '../../spec/events.ts';
import { deploymentState, launchRecord, site, temporaryStore } from './support.ts';

it('another one is stopped all the same, and what cannot be read is named', async () => {
  const { store, dispose } = temporaryStore();
  try {
    const events: ProgressEvent[] = [];
    for (const name of ['damaged', 'whole']) {
      store.prepareDeployment(name);
      store.write(deploymentState([launchRecord(1, { phase: 'ended' })], { name }));
    }
    writeFileSync(join(store.folder('damaged'), 'deployment.json'), '{');
    const operations = openOperations({
      loaded: { site, path: '/site.yaml', provenance: () => undefined, layout: store.layout },
      facts: { user: 'someone', environment: {} },
      command: 'test',
      now_ms: () => Date.now(),
      signal: new AbortController().signal,
      emit: (event) => events.push(event),
    });
    await stopDeployment(operations, 'whole', { keep_gateway: true });
    expect(store.require('whole').desired).toBe('stopped');
    expect(events).toEqual([
      expect.objectContaining({ kind: 'warning', message: expect.stringContaining('damaged') }),
      expect.objectContaining({ kind: 'stopped', deployment: 'whole' }),
    ]);
  } finally {
    dispose();
  }
});
