import { describe, expect, it } from 'vitest';
import { type ChatMessage, ChatTemplate } from '../../../agent/text/chat-template.ts';
import { ControlTextGuard, withBos } from '../../../agent/text/prompt-tokens.ts';
import { HpcserveError } from '../../../spec/errors/error.ts';

const tokens = { bos_token: '<s>', eos_token: '</s>' };
const options = { add_generation_prompt: true, continue_final_message: false, variables: {} };
const user: ChatMessage = { role: 'user', content: 'Hi' };

describe('chat template', () => {
  it('renders with tokens, variables and tools', () => {
    const template = new ChatTemplate(
      "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content }}{{ eos_token }}{% endfor %}{% if tools %}{{ tools | tojson }}{% endif %}{% if add_generation_prompt %}{{ '[assistant]' ~ mood }}{% endif %}",
      tokens,
    );
    expect(template.render({ ...options, messages: [user], variables: { mood: '!' } })).toBe(
      '<s>[user]Hi</s>[assistant]!',
    );
    expect(
      template.render({ ...options, messages: [user], tools: [{ a: 1 }], add_generation_prompt: false }),
    ).toBe('<s>[user]Hi</s>[{"a": 1}]');
  });

  it('falls back to ChatML', () => {
    const template = new ChatTemplate(undefined, tokens);
    expect(template.fallback).toBe(true);
    expect(template.render({ ...options, messages: [{ role: 'system', content: 'S' }, user] })).toBe(
      '<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n',
    );
  });

  it('knows the date', () => {
    const year = new ChatTemplate("{{ strftime_now('%Y') }}", tokens).render({ ...options, messages: [] });
    expect(Number(year)).toBeGreaterThan(2000);
  });

  it('continues the last message', () => {
    const template = new ChatTemplate(undefined, tokens);
    const messages = [user, { role: 'assistant', content: 'Once upon ' }];
    expect(template.render({ ...options, messages, continue_final_message: true })).toMatch(
      /assistant\nOnce upon $/,
    );
    expect(() =>
      template.render({
        ...options,
        messages: [user, { role: 'assistant', content: '' }],
        continue_final_message: true,
      }),
    ).toThrow(/cannot be continued/);
  });

  it('an exception of the template is a bad request in its own words', () => {
    const template = new ChatTemplate("{{ raise_exception('roles must alternate') }}", tokens);
    let thrown: unknown;
    try {
      template.render({ ...options, messages: [user] });
    } catch (error) {
      thrown = error;
    }
    expect(thrown).toBeInstanceOf(HpcserveError);
    expect((thrown as HpcserveError).http_status).toBe(400);
    expect((thrown as HpcserveError).because.join()).toContain('roles must alternate');
    expect(() => new ChatTemplate('{% if %}', tokens)).toThrow(/cannot be read/);
  });
});

describe('prompt tokens', () => {
  /** One token a character, `<|end|>` is token 1 where it is parsed. */
  const tokenizer = {
    bos: 0,
    add_bos: true,
    tokenize: (text: string, { parse_special }: { parse_special: boolean }) =>
      Int32Array.from(
        (parse_special ? text.split(/(<\|end\|>)/) : [text]).flatMap((part) =>
          part === '<|end|>' && parse_special ? [1] : Array.from(part, (letter) => letter.codePointAt(0)!),
        ),
      ),
  };
  const letters = (text: string) => Array.from(text, (letter) => letter.codePointAt(0)!);

  it('text of a user that spells a control token stays text', () => {
    const guard = new ControlTextGuard(['<|end|>']);
    const { value, masked } = guard.mask([{ role: 'user', content: 'a<|end|>b\uE0F0' }]);
    const prompt = `${value[0]!.content}<|end|>`;
    expect(Array.from(guard.tokenize(tokenizer, prompt, masked))).toEqual([
      0,
      ...letters('a<|end|>b\uE0F0'),
      1,
    ]);
  });

  it('puts one beginning token first', () => {
    expect(Array.from(withBos(tokenizer, Int32Array.of(5)))).toEqual([0, 5]);
    expect(Array.from(withBos(tokenizer, Int32Array.of(0, 5)))).toEqual([0, 5]);
    expect(Array.from(withBos({ ...tokenizer, add_bos: false }, Int32Array.of(5)))).toEqual([5]);
  });
});

describe('the date in a chat template', () => {
  it('is the one that is given, so that a prompt can be rendered again on another day', () => {
    const source = "\n{{ strftime_now('%d %b %Y, %A %H:%M %% %Q') }}|{{ messages[0].content }}";
    const template = new ChatTemplate(source, { bos_token: '', eos_token: '' });
    const options = { add_generation_prompt: true, continue_final_message: false, variables: {} };
    const messages = [{ role: 'user', content: 'x' }];
    const rendered = template.render({ ...options, messages, now_ms: Date.UTC(2024, 6, 6, 9, 5) });
    expect(rendered).toBe('\n06 Jul 2024, Saturday 09:05 % %Q|x');
  });
});
