import { describe, expect, test } from 'vitest';
import { type AnswerFacts, answerFormats } from '../../../solver/catalog/answer-formats.ts';
import { describeParsers, parsersFor } from '../../../solver/placement/answer-parsers.ts';
import { modelSchema } from '../../../spec/model-yaml.ts';
import type { PlacementModel } from '../../../spec/plan.ts';

/** The words of published templates that tell them apart, as their models' folders have them. */
const templates = {
  qwen25: '{% if tools %}<tools></tools> <tool_call>\n{"name": <function-name>}\n</tool_call>{% endif %}',
  qwen3:
    '<tool_call>\n{"name": …}</tool_call>{% if add_generation_prompt %}{% if enable_thinking is false %}<think>\n\n</think>{% endif %}',
  qwen3_thinking:
    '<tool_call>\n{"name": …}</tool_call>{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}',
  qwen3_coder: '<tool_call>\n<function=example_function_name>\n<parameter=x>',
  llama31:
    '<|start_header_id|>{% if message.role == "ipython" %}Given the following functions, respond with JSON',
  llama4:
    '<|header_start|>assistant<|header_end|>{% if tools %}[func_name1(params_name1=params_value1)]{% endif %}',
  mistral: "[AVAILABLE_TOOLS]{{ tools }}[/AVAILABLE_TOOLS][TOOL_CALLS] [{'name': 'x'}]",
  magistral: '[SYSTEM_PROMPT][THINK]…[/THINK][TOOL_CALLS]',
  r1: "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>\n```json\n{{ content.split('</think>')[-1] }}{% if add_generation_prompt %}<｜Assistant｜><think>\n",
  v3: '<｜tool▁calls▁begin｜>function<｜tool▁sep｜>\n```json\n',
  v31: '{% if not thinking is defined %}{% set thinking = false %}{% endif %}<｜tool▁calls▁begin｜>name<｜tool▁sep｜>args',
  glm45: '<tool_call>{function-name}\n<arg_key>{arg-key-1}</arg_key><think></think>',
  granite3: '{%- if tools %}Available tools{% endif %}<|tool_call|>',
  granite4: '{%- if tools %}<tools><tool_call>{"name"}</tool_call>{% endif %}',
  kimi_k2: '<|tool_calls_section_begin|>',
  plain: '{% for message in messages %}{{ message.content }}{% endfor %}',
} as const;

const facts = (type: string, template?: keyof typeof templates, name = 'model'): AnswerFacts => ({
  type,
  names: [name],
  template: template && templates[template],
});

describe('how models write calls and reasoning', () => {
  test.each<[string, AnswerFacts, string[] | undefined, string[] | undefined]>([
    ['Qwen2.5', facts('qwen2', 'qwen25'), ['hermes'], undefined],
    ['Qwen3', facts('qwen3_moe', 'qwen3'), ['hermes'], ['qwen3']],
    ['Qwen3 Instruct 2507', facts('qwen3_moe', 'qwen25'), ['hermes'], undefined],
    ['Qwen3 Thinking 2507', facts('qwen3_moe', 'qwen3_thinking'), ['hermes'], ['deepseek_r1']],
    ['Qwen3 Coder', facts('qwen3_moe', 'qwen3_coder'), ['qwen3_xml', 'qwen3_coder'], undefined],
    ['QwQ', facts('qwen2', 'qwen3_thinking'), ['hermes'], ['deepseek_r1']],
    ['Llama 3.1', facts('llama', 'llama31'), ['llama3_json'], undefined],
    ['Hermes 3, a Llama', facts('llama', 'qwen25'), ['hermes'], undefined],
    ['Llama 4', facts('llama4', 'llama4'), ['llama4_pythonic', 'pythonic'], undefined],
    ['Mistral', facts('mistral', 'mistral'), ['mistral'], undefined],
    ['Magistral', facts('mistral3', 'magistral'), ['mistral'], ['mistral']],
    ['DeepSeek R1', facts('deepseek_v3', 'r1'), ['deepseek_v3'], ['deepseek_r1']],
    ['R1 distilled into Qwen', facts('qwen2', 'r1'), undefined, ['deepseek_r1']],
    ['DeepSeek V3', facts('deepseek_v3', 'v3'), ['deepseek_v3'], undefined],
    ['DeepSeek V3.1', facts('deepseek_v3', 'v31'), ['deepseek_v31'], ['deepseek_v3']],
    ['gpt-oss', facts('gpt_oss'), ['openai'], ['openai_gptoss', 'GptOss']],
    ['GLM 4.5', facts('glm4_moe', 'glm45', 'zai-org/GLM-4.5-Air'), ['glm45'], ['glm45']],
    ['GLM 4.7', facts('glm4_moe', 'glm45', 'zai-org/GLM-4.7'), ['glm47', 'glm45'], ['glm47', 'glm45']],
    ['Granite 3', facts('granite', 'granite3'), ['granite'], undefined],
    ['Granite 4', facts('granitemoehybrid', 'granite4'), ['granite4', 'granite'], undefined],
    ['Kimi K2', facts('kimi_k2', 'kimi_k2'), ['kimi_k2'], undefined],
    ['one that nobody knows', facts('llama', 'plain'), undefined, undefined],
    ['a base model', facts('llama'), undefined, undefined],
  ])('%s', (_, given, tools, reasoning) => {
    const formats = answerFormats(given);
    expect([formats.tools?.vllm, formats.reasoning?.vllm]).toEqual([tools, reasoning]);
  });
});

describe('parsers of a unit', () => {
  const model = (spec: object = {}): PlacementModel =>
    ({
      spec: modelSchema.parse({ name: 'm', source: '/m', ...spec }),
      summary: { has_chat_template: true },
      formats: answerFormats(facts('qwen3', 'qwen3')),
    }) as unknown as PlacementModel;

  test('are by the engine, or as model.yaml says', () => {
    expect(parsersFor(model(), 'vllm')).toEqual({ tools: ['hermes'], reasoning: ['qwen3'] });
    expect(parsersFor(model(), 'sglang')).toEqual({
      tools: ['qwen25', 'qwen', 'hermes'],
      reasoning: ['qwen3'],
    });
    expect(parsersFor(model(), 'native')).toBeUndefined();
    expect(parsersFor(model({ parsers: { tools: 'xlam', reasoning: 'none' } }), 'vllm')).toEqual({
      tools: ['xlam'],
      reasoning: [],
    });
    expect(parsersFor(model({ reasoning: false }), 'vllm')?.reasoning).toEqual([]);
  });

  test('are said in the plan', () => {
    expect(describeParsers(model(), 'vllm')).toEqual([
      'vllm reads tool calls of Hermes by hermes, reasoning of Qwen3 by qwen3; where its version has the parser',
    ]);
    expect(describeParsers(model(), 'native')).toEqual([]);
    const llama = { ...model(), formats: answerFormats(facts('llama', 'llama31')) };
    expect(describeParsers(llama, 'vllm').at(-1)).toBe(
      'vLLM recommends its example tool_chat_template_llama3.1_json.jinja for tool calls of this model (chat_template)',
    );
    expect(describeParsers({ ...model(), formats: {} }, 'vllm')).toEqual([
      "no parser of vllm is known for this model's tool calls: it refuses tool_choice auto (parsers.tools names one)",
    ]);
  });
});
