import { expect, test } from 'vitest';
import { chooseFiles } from '../../../../control/model-source/pull/choose-files.ts';

function chosen(...paths: string[]): string[] {
  const repository = { id: 'org/name', revision: 'main' };
  const files = paths.map((path) => ({ path, size_bytes: 1 }));
  return chooseFiles(repository, files).map(({ path }) => path);
}

test('weights that a repository holds twice are chosen once', () => {
  const model = ['config.json', 'model-00001-of-00002.safetensors', 'model-00002-of-00002.safetensors'];
  expect(chosen('consolidated.safetensors', ...model)).toEqual(model);
  const parts = ['consolidated-00001-of-00002.safetensors', 'consolidated-00002-of-00002.safetensors'];
  expect(chosen(...model, ...parts)).toEqual(model);
  // Nothing else has them.
  expect(chosen('params.json', ...parts)).toEqual(['params.json', ...parts]);
  expect(chosen('adapter.safetensors', ...parts)).toEqual(['adapter.safetensors', ...parts]);
});
