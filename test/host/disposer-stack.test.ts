import { describe, expect, it } from 'vitest';
import { DisposerStack } from '../../host/disposer-stack.ts';

describe('a stack of disposers', () => {
  it('ends parts in the reverse order, one after the other, and once', async () => {
    const ended: string[] = [];
    const stack = new DisposerStack();
    expect(stack.add('a', (name) => ended.push(name))).toBe('a');
    stack.add('b', async (name) => {
      await new Promise((resolve) => setTimeout(resolve, 20));
      ended.push(name);
    });
    stack.add('c', (name) => ended.push(name));
    await Promise.all([stack.dispose(), stack.dispose()]);
    await stack.dispose();
    expect(ended).toEqual(['c', 'b', 'a']);
  });

  it('ends the others where one cannot be ended, and says so', async () => {
    const ended: string[] = [];
    const broken = new Error('stuck');
    const stack = new DisposerStack();
    stack.add('a', (name) => ended.push(name));
    stack.add('b', () => Promise.reject(broken));
    stack.add('c', (name) => ended.push(name));
    await expect(stack.dispose()).rejects.toBe(broken);
    expect(ended).toEqual(['c', 'a']);
    const twice = new DisposerStack();
    for (const reason of ['one', 'other'])
      twice.add(reason, () => {
        throw new Error(reason);
      });
    await expect(twice.dispose()).rejects.toMatchObject({
      errors: [{ message: 'other' }, { message: 'one' }],
    });
  });
});
