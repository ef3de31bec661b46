/**
 * How a model writes calls of tools and its reasoning into its text, and what vLLM and SGLang call the parser for it.
 * Names of parsers are from https://docs.vllm.ai/en/latest/features/tool_calling/ and …/reasoning_outputs/, from
 * https://docs.sglang.io/docs/advanced_features/tool_parser and …/separate_reasoning, and from the tables in their
 * sources. What decides is the chat template, which people keep when they fine-tune or rename a model: it holds the
 * words that the model was taught. Where formats look alike there, or there is no template, the `model_type` of
 * config.json or the name decides. The first row that fits is taken.
 */
import type { AnswerFormat, AnswerFormats } from '../../spec/answer-parsers.ts';

/** What is known of a model. */
export interface AnswerFacts {
  /** `model_type` of config.json. */
  type: string;
  /** Its served name, and from where it comes. */
  names: readonly string[];
  /** Jinja; absent: it has none. */
  template: string | undefined;
}

interface Row extends AnswerFormat {
  type?: RegExp;
  name?: RegExp;
  /** The template is there and has this. */
  template?: RegExp;
  /** The template, if there is one, does not have this. */
  without?: RegExp;
}

/** A prompt that ends where the model is to think: it then writes the end of its thoughts alone. */
const thinks_at_once = /add_generation_prompt[\s\S]*<think>/;
/** Requests may turn reasoning off, and the template has words for that. */
const may_think = /enable_thinking/;

const tools: readonly Row[] = [
  { type: /^gpt_oss$/, format: 'harmony', vllm: ['openai'], sglang: ['gpt-oss'] },
  { type: /^deepseek_v4/, format: 'DeepSeek V4', vllm: ['deepseek_v4'], sglang: ['deepseekv4'] },
  { type: /^deepseek_v32/, format: 'DeepSeek V3.2', vllm: ['deepseek_v32'], sglang: ['deepseekv32'] },
  {
    type: /^deepseek_v3$/,
    template: /tool▁calls▁begin/,
    without: /```json/,
    format: 'DeepSeek V3.1',
    vllm: ['deepseek_v31'],
    sglang: ['deepseekv31'],
    vllm_template: 'tool_chat_template_deepseekv31.jinja',
  },
  {
    type: /^deepseek_v3$/,
    format: 'DeepSeek V3',
    vllm: ['deepseek_v3'],
    sglang: ['deepseekv3'],
    vllm_template: 'tool_chat_template_deepseekv3.jinja',
  },
  { type: /^kimi_k3/, format: 'Kimi K3', vllm: ['kimi_k3'], sglang: ['kimi_k3'] },
  { type: /^kimi_k2/, format: 'Kimi K2', vllm: ['kimi_k2'], sglang: ['kimi_k2'] },
  { template: /tool_calls_section_begin/, format: 'Kimi K2', vllm: ['kimi_k2'], sglang: ['kimi_k2'] },
  {
    name: /glm-?(4\.7|5)/i,
    template: /<arg_key>/,
    format: 'GLM 4.7',
    vllm: ['glm47', 'glm45'],
    sglang: ['glm47', 'glm45'],
  },
  { template: /<arg_key>/, format: 'GLM 4.5', vllm: ['glm45'], sglang: ['glm45', 'glm'] },
  { type: /^minimax_m3/, format: 'MiniMax M3', vllm: ['minimax_m3'], sglang: ['minimax-m3'] },
  { template: /<minimax:tool_call>/, format: 'MiniMax M2', vllm: ['minimax_m2'], sglang: ['minimax-m2'] },
  { type: /^step3p5/, format: 'Step 3.5', vllm: ['step3p5'], sglang: ['step3p5'] },
  { type: /^step3/, format: 'Step 3', vllm: ['step3'], sglang: ['step3'] },
  { type: /^seed_oss$/, format: 'Seed OSS', vllm: ['seed_oss'], sglang: [] },
  {
    type: /^mimo/,
    template: /<tool_call>/,
    format: 'MiMo',
    vllm: ['mimo', 'hermes'],
    sglang: ['mimo', 'qwen25'],
  },
  {
    template: /<function=/,
    format: 'Qwen3 Coder',
    vllm: ['qwen3_xml', 'qwen3_coder'],
    sglang: ['qwen3_coder'],
  },
  { type: /^hunyuan_v1_moe$/, format: 'Hunyuan A13B', vllm: ['hunyuan_a13b'], sglang: ['hunyuan'] },
  { type: /^ernie4_5/, template: /<tool_call>/, format: 'ERNIE 4.5', vllm: ['ernie45'], sglang: [] },
  { type: /^gemma4/, format: 'Gemma 4', vllm: ['gemma4'], sglang: ['gemma4'] },
  { type: /^granitemoehybrid$/, format: 'Granite 4', vllm: ['granite4', 'granite'], sglang: [] },
  {
    name: /granite-20b-functioncalling/i,
    format: 'Granite 20B function calling',
    vllm: ['granite-20b-fc'],
    sglang: [],
    vllm_template: 'tool_chat_template_granite_20b_fc.jinja',
  },
  { type: /^granite(moe)?$/, template: /tools/, format: 'Granite 3', vllm: ['granite'], sglang: [] },
  {
    type: /^llama4/,
    format: 'Llama 4',
    vllm: ['llama4_pythonic', 'pythonic'],
    sglang: ['pythonic'],
    vllm_template: 'tool_chat_template_llama4_pythonic.jinja',
  },
  { name: /xlam/i, format: 'xLAM', vllm: ['xlam'], sglang: [] },
  { template: /\[TOOL_CALLS\]/, format: 'Mistral', vllm: ['mistral'], sglang: ['mistral'] },
  { type: /^phi3/, template: /<\|tool\|>/, format: 'Phi 4 mini', vllm: ['phi4_mini_json'], sglang: [] },
  { template: /<\|plugin\|>/, format: 'InternLM', vllm: ['internlm'], sglang: [] },
  { type: /^jamba$/, format: 'Jamba', vllm: ['jamba'], sglang: [] },
  { type: /^olmo3$/, template: /function_calls/, format: 'Olmo 3', vllm: ['olmo3'], sglang: [] },
  {
    type: /^apertus$/,
    format: 'Apertus',
    vllm: ['apertus'],
    sglang: ['apertus2509'],
    vllm_template: 'tool_chat_template_apertus.jinja',
  },
  { type: /^lfm2/, format: 'LFM2', vllm: ['lfm2'], sglang: ['lfm2'] },
  { template: /<longcat_tool_call>/, format: 'LongCat', vllm: ['longcat'], sglang: [] },
  { template: /<tool_call>/, format: 'Hermes', vllm: ['hermes'], sglang: ['qwen25', 'qwen', 'hermes'] },
  {
    type: /^m?llama$/,
    template: /ipython|<\|python_tag\|>/,
    format: 'Llama 3 JSON',
    vllm: ['llama3_json'],
    sglang: ['llama3'],
    vllm_template: 'tool_chat_template_llama3.1_json.jinja',
  },
];

const reasoning: readonly Row[] = [
  { type: /^gpt_oss$/, format: 'harmony', vllm: ['openai_gptoss', 'GptOss'], sglang: ['gpt-oss'] },
  {
    type: /^deepseek_v4/,
    format: 'DeepSeek V4',
    vllm: ['deepseek_v4'],
    sglang: ['deepseek-v4', 'deepseek-v3'],
  },
  {
    type: /^deepseek_v3/,
    template: /\bthinking\b/,
    format: 'DeepSeek V3.1',
    vllm: ['deepseek_v3'],
    sglang: ['deepseek-v3'],
  },
  {
    type: /^deepseek_v3$/,
    template: /<\/think>/,
    format: 'DeepSeek R1',
    vllm: ['deepseek_r1'],
    sglang: ['deepseek-r1'],
  },
  { type: /^kimi_k3/, format: 'Kimi K3', vllm: ['kimi_k3'], sglang: ['kimi_k3'] },
  { type: /^kimi_k2/, template: /think>/, format: 'Kimi K2', vllm: ['kimi_k2'], sglang: ['kimi_k2'] },
  {
    name: /glm-?(4\.7|5)/i,
    template: /<arg_key>[\s\S]*<think>|<think>[\s\S]*<arg_key>/,
    format: 'GLM 4.7',
    vllm: ['glm47', 'glm45'],
    sglang: ['glm45'],
  },
  { type: /^glm4/, template: /<think>/, format: 'GLM 4.5', vllm: ['glm45'], sglang: ['glm45'] },
  { type: /^minimax_m3/, format: 'MiniMax M3', vllm: ['minimax_m3'], sglang: ['minimax'] },
  {
    template: /<minimax:tool_call>/,
    format: 'MiniMax M2',
    vllm: ['minimax_m2_append_think', 'minimax_m2'],
    sglang: ['minimax-append-think', 'minimax'],
  },
  { type: /^step3p5/, format: 'Step 3.5', vllm: ['step3p5'], sglang: ['step3p5'] },
  { type: /^step3/, format: 'Step 3', vllm: ['step3'], sglang: ['step3'] },
  { type: /^seed_oss$/, format: 'Seed OSS', vllm: ['seed_oss'], sglang: [] },
  { type: /^mimo/, template: /<think>/, format: 'MiMo', vllm: ['mimo', 'qwen3'], sglang: ['mimo', 'qwen3'] },
  { type: /^hunyuan_v1_moe$/, format: 'Hunyuan A13B', vllm: ['hunyuan_a13b'], sglang: [] },
  { type: /^ernie4_5/, template: /<think>/, format: 'ERNIE 4.5', vllm: ['ernie45'], sglang: [] },
  { type: /^gemma4/, format: 'Gemma 4', vllm: ['gemma4'], sglang: ['gemma4'] },
  { type: /^granite$/, template: /thought process/, format: 'Granite 3.2', vllm: ['granite'], sglang: [] },
  { template: /\[THINK\]/, format: 'Magistral', vllm: ['mistral'], sglang: ['mistral'] },
  {
    type: /^nemotron/,
    template: /<think>/,
    format: 'Nemotron',
    vllm: ['nemotron_v3'],
    sglang: ['nemotron_3', 'nano_v3'],
  },
  { type: /^olmo3$/, template: /<think>/, format: 'Olmo 3', vllm: ['olmo3'], sglang: ['olmo3'] },
  { type: /^qwen3/, template: may_think, format: 'Qwen3', vllm: ['qwen3'], sglang: ['qwen3'] },
  {
    type: /^qwen3/,
    template: thinks_at_once,
    format: 'Qwen3 Thinking',
    vllm: ['deepseek_r1'],
    sglang: ['qwen3-thinking', 'deepseek-r1'],
  },
  // QwQ and what was distilled from R1, of other families' architectures.
  {
    template: thinks_at_once,
    without: may_think,
    format: 'DeepSeek R1',
    vllm: ['deepseek_r1'],
    sglang: ['deepseek-r1'],
  },
];

/** The formats of a model's answers, as far as a row knows them. */
export function answerFormats(facts: AnswerFacts): AnswerFormats {
  return { tools: formatOf(tools, facts), reasoning: formatOf(reasoning, facts) };
}

function formatOf(rows: readonly Row[], { type, names, template }: AnswerFacts): AnswerFormat | undefined {
  const row = rows.find(
    (each) =>
      (each.type === undefined || each.type.test(type)) &&
      (each.name === undefined || names.some((name) => each.name!.test(name))) &&
      (each.template === undefined || (template !== undefined && each.template.test(template))) &&
      (each.without === undefined || template === undefined || !each.without.test(template)),
  );
  if (row === undefined) return undefined;
  const { format, vllm, sglang, vllm_template } = row;
  return { format, vllm, sglang, vllm_template };
}
